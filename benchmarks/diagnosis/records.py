"""What an episode recorded, packed small enough to be committed beside its result.

With it the episode can be diagnosed again, and its requests compared with those of the clean twin,
on another machine and years later. It holds times and sizes; prompts and
outputs are in neither journals nor clients' logs, and of the model's place on the disk only its
name is left.

A folder of records has the results of its episodes beside it, in `episodes`. The committed one is
small; docs/results/records.md says where all others are.
"""

from __future__ import annotations

import argparse
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from diagnosis.verdicts.baseline_file import read_baseline, save_baseline
from lab.drills.client import Sent
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.records import Fact
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal

RECORDS = Path(__file__).resolve().parents[1] / "results" / "diagnosis" / "records"
EPISODES = "episodes"
JOURNALS, _BASELINE, _CLIENTS = ("journal", "reference.journal"), "baseline.json", "clients.jsonl"
SLO_FILE = "slo.toml"
SUFFIX = ".tar.xz"

F = TypeVar("F", bound=Fact)


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add `--records`, the folder of records."""
    parser.add_argument(
        "--records",
        type=Path,
        default=RECORDS,
        metavar="FOLDER",
        help="packed episodes, with their results in `episodes` beside it; by default the "
        "committed ones, of which there is one a class",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """`[FOLDER]`: results of episodes, where they are not beside their records."""
    parser.add_argument(
        "folder", nargs="?", type=Path, help="results, by default those beside the records"
    )


def results_beside(records: Path) -> Path:
    """Where the results of the episodes in a folder of records are."""
    return records.parent / EPISODES


def pack(folder: Path, records: Path = RECORDS) -> None:
    """Write atomically. Does nothing for an episode that left no journal. Raises JournalError,
    BaselineError."""
    if not (folder / "journal").is_file():
        return
    records.mkdir(parents=True, exist_ok=True)
    part = records / f"{folder.name}.part"
    with tempfile.TemporaryDirectory() as name, tarfile.open(part, "w:xz") as archive:
        for path in _portable(folder, Path(name)):
            archive.add(path, path.name, filter=_without_owner)
    part.replace(records / f"{folder.name}{SUFFIX}")


def _portable(folder: Path, into: Path) -> Iterator[Path]:
    """The episode's files without paths of this machine."""
    for name in JOURNALS:
        if (folder / name).is_file():
            facts = (_without_place(fact) for fact in open_journal(folder / name).facts())
            write_journal(into / name, facts, MonotonicClock(), "packed")
            yield into / name
    if (folder / _BASELINE).is_file():
        usual = read_baseline(folder / _BASELINE)
        started = None if usual.started is None else _without_place(usual.started)
        save_baseline(msgspec.structs.replace(usual, started=started), into / _BASELINE)
        yield into / _BASELINE
    for name in (_CLIENTS, SLO_FILE):
        if (folder / name).is_file():
            yield Path(shutil.copyfile(folder / name, into / name))


def _without_place(fact: F) -> F:
    if not isinstance(fact, EngineStarted):
        return fact
    identity, *more = fact.cache_identity.split("; ")
    kind, _, path = identity.partition(" ")
    named = f"{kind} {Path(path).name}" if path else kind
    return msgspec.structs.replace(fact, cache_identity="; ".join([named, *more]))


def folder_of(name: str, work: Path, records: Path = RECORDS) -> Path | None:
    """Where the episode's files lie, unpacked below `work` if they were not there; None where
    nothing was kept."""
    folder, packed = work / name, records / f"{name}{SUFFIX}"
    if not (folder / "journal").exists() and packed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
    return folder if (folder / "journal").exists() else None


def read_clients(folder: Path) -> list[Sent]:
    """Every request of an episode as its client saw it. Raises OSError, msgspec.MsgspecError."""
    lines = (folder / _CLIENTS).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Sent) for line in lines]


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
