"""The exact ledger: every nanosecond of a request has one state, one part and one payer.

[accepted, ended) is cut at integer stamps into half-open intervals, so the entries sum to the
end-to-end time by construction. A request with several choices is followed along the choice whose
tokens came last: its client waited for that one.

The ledger is direct: it names the requests in the steps that a request ran in or waited for. What
would have happened without them is not in it; replay answers that.

Of an engine that is attached, some intervals cannot be seen. They are a part of their own,
NOT_OBSERVED, and never spread over the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum

import msgspec

NAMED_PAYERS = 16


class State(StrEnum):
    """What the request was doing."""

    INGEST = "ingest"
    WAIT = "wait"
    RUN = "run"
    SKIP = "skip"
    PREEMPTED = "preempted"
    DELIVER = "deliver"
    WIRE = "wire"


class Part(StrEnum):
    """What the time went into. CO_PREFILL and CO_MASK are prompts and masks of another request, the
    payer; CO_DECODE is the decodes of all other requests together."""

    ACCEPT = "accept"  # in the socket, not yet read by the gateway
    PARSE = "parse"
    TOKENIZE = "tokenize"
    DISPATCH = "dispatch"  # submitted to the engine's socket, or refused before that
    OWN_PREFILL = "own_prefill"
    OWN_RECOMPUTE = "own_recompute"
    OWN_AVOIDABLE = "own_avoidable"  # a larger prefix cache would have had it
    OWN_DECODE = "own_decode"
    BASE = "base"
    CO_PREFILL = "co_prefill"
    CO_DECODE = "co_decode"
    INTERACTION = "interaction"
    SLOW_STEP = "slow_step"
    SAMPLE = "sample"
    MASK = "mask"
    CO_MASK = "co_mask"
    HOST = "host"
    GAP = "gap"
    HOST_STALL = "host_stall"  # a pause of the engine or the gateway whose cause is known
    GRAMMAR = "grammar"
    ADAPTER = "adapter"  # its adapter was loaded, or the loop placed one, whoever asked for it
    REMOTE_KV = "remote_kv"  # its KV blocks came from another machine or store
    KV_RESERVE = "kv.reserve"  # until blocks were reserved for the KV of another engine
    KV_QUEUE = "kv.queue"  # at the engine that computes its prompt: before and between its steps
    KV_PREFILL = "kv.prefill"  # there: in those steps
    KV_TRANSFER = "kv.transfer"  # there: blocks on their way, and nothing of it computed
    KV_WIRE = "kv.wire"  # messages between the two engines
    KV_SEAL = "kv.seal"  # its blocks were compared with their digests
    KV_WAIT = "kv.wait"  # it had its KV, and no place in the batch
    KV_LOST = "kv.lost"  # its KV did not come, or was not right
    WIRE = "wire"  # to an engine node and back: the time here less the time there
    WIRE_OUT = "wire_out"
    WIRE_BACK = "wire_back"
    CLIENT = "client"
    LOST_STEP = "lost_step"  # in flight when the engine died
    DETOKENIZE = "detokenize"
    SEND = "send"
    UNATTRIBUTED = "unattributed"
    NOT_OBSERVED = "not_observed"  # the entry's reason is a NotObserved


class NotObserved(StrEnum):
    """What of a request cannot be seen: with an attached engine, or at an engine node."""

    FRONT_END = "front_end"  # in a front end that nothing observes
    TO_ENGINE = "to_engine"  # from the front end to the process of the engine core
    TO_FRONT_END = "to_front_end"  # the last token, from the engine core to the front end
    ENGINE = "engine"  # in an engine core that has told nothing of the request
    AT_NODE = "at_node"  # at an engine node whose account did not come, or contradicts itself


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time in ns that one state, for one reason, spent in one part.

    It is negative for a wire that was shorter than what clocks may drift apart meanwhile.
    `payer` is a request id for CO_PREFILL and CO_MASK (None: all beyond the largest NAMED_PAYERS),
    and the cause for HOST_STALL. `reason` is empty where the state needs none.
    """

    state: State
    part: Part
    ns: int
    reason: str = ""
    payer: str | None = None


class Ledger(msgspec.Struct, frozen=True):
    """The entries of one request; they sum to `e2e_ns`."""

    e2e_ns: int
    entries: tuple[Entry, ...]

    @property
    def sum_ns(self) -> int:
        return sum(entry.ns for entry in self.entries)

    @property
    def residue_ns(self) -> int:
        """Sum of the parts minus the end-to-end time: 0."""
        return self.sum_ns - self.e2e_ns

    @property
    def unattributed_ns(self) -> int:
        return sum(entry.ns for entry in self.entries if entry.part is Part.UNATTRIBUTED)

    @property
    def not_observed_ns(self) -> int:
        return self.by_not_observed().total()

    def by_not_observed(self) -> Counter[str]:
        """The time in ns that was not observed, by `NotObserved`."""
        found: Counter[str] = Counter()
        for entry in self.entries:
            if entry.part is Part.NOT_OBSERVED:
                found[entry.reason] += entry.ns
        return found

    def by_part(self) -> Counter[Part]:
        found: Counter[Part] = Counter()
        for entry in self.entries:
            found[entry.part] += entry.ns
        return found

    def by_state(self) -> Counter[State]:
        found: Counter[State] = Counter()
        for entry in self.entries:
            found[entry.state] += entry.ns
        return found

    def by_payer(self) -> Counter[str]:
        """Time in ns taken by each other request that is named."""
        found: Counter[str] = Counter()
        for entry in self.entries:
            if entry.payer is not None and entry.part is not Part.HOST_STALL:
                found[entry.payer] += entry.ns
        return found


class Stall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gap between two tokens that was longer than its class allows, and the largest part of it.
    The culprit fields are None if that part is not another request's prompt or mask;
    `culprit_step_id` is the step in which the culprit took most."""

    seq_id: int
    begin_ns: int
    end_ns: int
    target_ns: int
    part: Part
    part_ns: int
    reason: str = ""
    cause: str | None = None
    culprit_request_id: str | None = None
    culprit_trace_id: str | None = None
    culprit_seq_id: int | None = None
    culprit_step_id: int | None = None
    entries: tuple[Entry, ...] = ()


class Account(msgspec.Struct, frozen=True):
    """Where the time of one ended request went. `stalls_cut` more stalls were not kept. A request
    that `is_core_only` is known from the core of an attached engine alone: its time is not that of
    its client, it ends where the core had the last token."""

    ledger: Ledger
    stalls: tuple[Stall, ...] = ()
    stalls_cut: int = 0
    is_core_only: bool = False


# (state, reason, part, payer): the payer is a sequence id, a cause, or None
Key = tuple[State, str, Part, int | str | None]
Book = Counter[Key]


def entries_of(book: Book, request_of: Callable[[int], str | None]) -> tuple[Entry, ...]:
    """The book as entries, in the order of states and parts. Sequences become request ids by
    `request_of`; payers beyond the largest NAMED_PAYERS of a key are merged into one entry."""
    groups: dict[tuple[State, str, Part], Counter[str | None]] = {}
    for (state, reason, part, payer), spent_ns in book.items():
        if spent_ns:
            name = request_of(payer) if isinstance(payer, int) else payer
            groups.setdefault((state, reason, part), Counter())[name] += spent_ns
    order = {member: place for place, member in enumerate((*State, *Part))}
    entries: list[Entry] = []
    for state, reason, part in sorted(groups, key=lambda k: (order[k[0]], k[1], order[k[2]])):
        payers = groups[state, reason, part]
        unnamed_ns = payers.pop(None, 0)
        ranked = sorted(payers.items(), key=lambda item: (-item[1], str(item[0])))
        unnamed_ns += sum(spent_ns for _, spent_ns in ranked[NAMED_PAYERS:])
        for name, spent_ns in ranked[:NAMED_PAYERS]:
            entries.append(Entry(state, part, spent_ns, reason, name))
        if unnamed_ns:
            entries.append(Entry(state, part, unnamed_ns, reason))
    return tuple(entries)
