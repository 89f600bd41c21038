"""Facts for journals, and journals in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import (
    Row,
    StepRecorded,
)
from telemetry.facts.records import Fact
from telemetry.journal.journal import Journal
from telemetry.journal.journal_reader import (
    read_journal,
)
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    queued,
    submitted,
    tokenized,
)
from tests.support.worlds.facts import step as make_step

SECOND = 1_000_000_000


def saved(path: Path, frames: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(frames))
    return path


def kept(journal: Journal, folder: Path) -> list[Fact]:
    return list(read_journal(saved(folder / "kept.journal", journal.frames("request"))))


def request(request_id: str, seq_id: int, at: int) -> list[Fact]:
    return [
        accepted(request_id, at=at),
        parsed(request_id, at=at),
        tokenized(request_id, at=at),
        submitted(request_id, at=at, seq_id=seq_id),
        queued(seq_id, at=at),
    ]


def steps(count: int, first: int = 0, seq_ids: Sequence[int] = (1,)) -> list[Fact]:
    return [
        make_step(number, 10 * number, 10 * number + 9, [decode(seq) for seq in seq_ids])
        for number in range(first, first + count)
    ]


# What goes in comes out


# Bounded memory


def heavy_step(step_id: int, rows: int) -> StepRecorded:
    """A full batch of decodes in mid-conversation, 100 steps a second; a row lasts a few seconds,
    then another sequence has it."""
    at_ns = step_id * 10 * MS + (step_id * 7919) % 100_003
    stamps = [at_ns + offset * 1003 for offset in (0, 40, 90, 120, 8800, 9100, 9400)]
    return StepRecorded(
        step_id,
        *stamps,
        tuple(_row(step_id + 37 * place, place) for place in range(rows)),
        (),
        (),
        2048,
        rows,
        17,
        9000,
        20_000 + step_id % 40,
        300,
        60_000,
    )


def _row(age: int, place: int) -> Row:
    turn, done = divmod(age, 150 + place % 100)
    context = 100 + (place * 37 + turn * 911) % 3000 + done
    return Row(900 + 256 * turn + place, False, 1, context, 0, 1, False)


def turn_over(journal: Journal, clock: ManualClock, count: int = 3000) -> None:
    """Push everything that is in a small ring out of it."""
    for number in range(count):
        clock.advance(10 * MS)
        journal.on_facts([heavy_step(100 + number, 64)])


def small() -> tuple[Journal, ManualClock]:
    clock = ManualClock()
    return Journal(clock, 1 << 16), clock
