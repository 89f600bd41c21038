"""Facts about engines on other machines, which the gateway writes.

An engine node has a clock of its own. Stamps whose names begin with `node_`, and all of a
`RemoteAccount`, are of the node's clock; all others are of the gateway's. The two are never
subtracted from each other in a sum (`telemetry.clocks`). An engine is named by `engine`, its name
in the membership, and `incarnation`, a number that a node draws at each start of its engine. The
rules for facts are in `telemetry.facts.records`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from telemetry.facts.base import FactStruct as _Fact
from telemetry.facts.reasons import EndReason

MOST_PARTS = 256
"""Most parts of one account; a ledger has some dozens."""

Word = Annotated[str, msgspec.Meta(max_length=128)]


class RemotePart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`ns` of a sequence's time at a node. The words are those of a ledger's entry there
    (`telemetry.requests.account`): `state` is what the sequence was doing, `part` what the time
    went into, `reason` why. `payer` is another request's id, or a cause."""

    part: Word
    ns: int
    state: Word = "run"
    reason: Word = ""
    payer: Word | None = None


Parts = Annotated[tuple[RemotePart, ...], msgspec.Meta(max_length=MOST_PARTS)]


class RemoteAccount(msgspec.Struct, frozen=True, array_like=True):
    """What a node accounts for of one sequence, in its own clock: the `parts` add up to
    `last_emission_ns - received_ns`. A frame carries it with the end of the sequence.

    `received_ns`: the submit was read; `first_emission_ns` and `last_emission_ns`: the first and
    the last output was written. None: the first is not known."""

    received_ns: int
    last_emission_ns: int
    parts: Parts
    first_emission_ns: int | None = None


class SequenceSent(_Fact, frozen=True):
    """The sequence was handed to the connection to a node: the first of the four stamps."""

    at_ns: int
    seq_id: int
    engine: str
    incarnation: int


class RemoteAdmitted(_Fact, frozen=True):
    """The news was read that the sequence came into the batch of its engine for the first time, of
    its `known_tokens` tokens with `hit_tokens` in the prefix cache there, and `ghost_tokens` more
    that a larger cache would have had. It came in `waited_ns` after its submit was read there, a
    duration by the node's clock, and the news with the end of its first step; None: not known.
    `received_tokens` are those whose KV came from another engine: that one computed them."""

    at_ns: int
    seq_id: int
    engine: str
    known_tokens: int
    hit_tokens: int
    ghost_tokens: int
    waited_ns: int | None = None
    received_tokens: int = 0


class ReceivedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`tokens` of one sequence."""

    seq_id: int
    tokens: int


class TokensReceived(_Fact, frozen=True):
    """A frame with tokens of some sequences was read from a node."""

    at_ns: int
    engine: str
    rows: tuple[ReceivedRow, ...]


class RemoteAccounted(_Fact, frozen=True):
    """The sequence's last output was read from the node at `at_ns`, and its first token at
    `first_arrived_ns` (None: it has none). `account` is the node's; None: none came. This ends the
    sequence, for `reason`."""

    at_ns: int
    seq_id: int
    engine: str
    incarnation: int
    reason: EndReason
    account: RemoteAccount | None = None
    first_arrived_ns: int | None = None


class ClockSampled(_Fact, frozen=True):
    """One exchange with a node: a frame was handed over at `sent_ns`, read there at
    `node_received_ns`, answered at `node_sent_ns`, and the answer read here at `at_ns`."""

    at_ns: int
    engine: str
    incarnation: int
    sent_ns: int
    node_received_ns: int
    node_sent_ns: int
