"""Small types that several rooms share and that are no facts themselves: the base of every fact, a
measurement that may be missing, an event for traces, and the flight recorder's own counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

SPACE_BITS = 38
"""The lower part of a sequence id: each gateway process numbers its sequences in a space of its
own. With the upper part an id still fits a double, as JSON readers have them."""


def space_of(seq_id: int) -> int:
    """Which gateway process gave the id; 0 is the main or only one."""
    return seq_id >> SPACE_BITS


def unlisted(known: Iterable[int], live: frozenset[int], last: Sequence[int]) -> list[int]:
    """The known sequence ids that are not `live`, and not larger than the `last` one of their
    space."""
    if len(last) == 1:
        return [one for one in known if one <= last[0] and one not in live]
    last_of = {space_of(one): one for one in last}
    return [one for one in known if one <= last_of.get(space_of(one), -1) and one not in live]


class FactStruct(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of every fact. Encodes as a MessagePack array headed by the class name."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A measurement that has no value; `why` gives the reason. Used instead of a misleading 0."""

    why: str


Value = float | Unavailable


class SpanEvent(NamedTuple):
    """Something that happened to the server at `at_ns`, such as an alarm. The exporter adds it as
    a span event to the root span of each request that was live then."""

    at_ns: int
    name: str
    attributes: Mapping[str, str | float]


SpanEvents = Callable[[int, int], Sequence[SpanEvent]]
"""The events in [begin_ns, end_ns), in order. The exporter's thread calls it."""


class JournalStats(msgspec.Struct, frozen=True):
    """The journal in memory. `is_short`: facts were dropped to stay within the capacity although
    less than five minutes are covered."""

    bytes: int
    capacity_bytes: int
    facts: int
    facts_dropped: int
    covered_ns: int
    is_short: bool


class RecorderStats(msgspec.Struct, frozen=True):
    """The flight recorder since the start. `dumps` and `dumps_suppressed` are keyed by reason;
    `files_error` is the last error of writing to the journal folder, `files_errors` counts them,
    and `files_pieces_lost` what was dropped from memory before it could be written there."""

    journal: JournalStats
    dumps: dict[str, int]
    dumps_suppressed: dict[str, int]
    dumps_failed: int
    last_dump: str | None
    stalls: int
    files_error: str | None
    files_errors: int = 0
    files_pieces_lost: int = 0
