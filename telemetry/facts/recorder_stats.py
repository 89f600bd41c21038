"""What the flight recorder says of itself."""

from __future__ import annotations

import msgspec


class JournalStats(msgspec.Struct, frozen=True):
    """Of the journal in memory. `is_short`: facts had to be dropped to stay within the
    capacity although less than five minutes are covered."""

    bytes: int
    capacity_bytes: int
    facts: int
    facts_dropped: int
    covered_ns: int
    is_short: bool


class RecorderStats(msgspec.Struct, frozen=True):
    """`dumps` and `dumps_suppressed` are keyed by reason. `files_error` says why the journal
    folder was given up, if it was."""

    journal: JournalStats
    dumps: dict[str, int]
    dumps_suppressed: dict[str, int]
    dumps_failed: int
    last_dump: str | None
    stalls: int
    files_error: str | None
