"""What the present version says of episodes that were recorded by an earlier one.

A journal gives the verdict that was given live, so a change of the diagnosis needs no new episodes:
each journal that was kept is lived through again, and what is said, and since when, is kept
beside what was said live. An answer counts from half a look later, since that is how often the
live ones were asked for.

    .venv/bin/python -m benchmarks.diagnosis.again [FOLDER] [--work DIR]
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import RESULTS, Kept, keep, read_kept, work_folder
from benchmarks.diagnosis.records import folder_of
from diagnosis.classifier import Diagnoser
from diagnosis.offline import baseline_of
from diagnosis.reference import BaselineError, Reference
from service.drill.watch import EVERY_S, Look, Turn, timeline
from telemetry.journal_reader import open_journal
from telemetry.records import fact_ns

_LATER_NS = int(EVERY_S / 2 * 1e9)


def turns_of(folder: Path, begin_ns: int) -> list[Turn]:
    """Every change of opinion over the journal in `folder`."""
    diagnoser = Diagnoser(_baseline(folder))
    looks: list[Look] = []
    before = None
    for fact in open_journal(folder / "journal").facts():
        diagnoser.on_facts([fact])
        said = diagnoser.diagnosis()
        if said is not before:
            before, at_ns = said, fact_ns(fact) + _LATER_NS
            answer = msgspec.Raw(msgspec.json.encode(said))
            looks.append(Look(at_ns=at_ns, until_ns=at_ns, looks=1, answer=answer))
    return timeline(looks, begin_ns)


def _baseline(folder: Path) -> Reference | None:
    journal = folder / "reference.journal"
    if not journal.exists():
        return None
    try:
        return baseline_of(open_journal(journal))
    except BaselineError:
        return None


def judged_again(task: tuple[Kept, Path]) -> Kept:
    kept, folder = task
    return msgspec.structs.replace(kept, again=turns_of(folder, kept.episode.begin_ns))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, help="where the journals are, by default per split")
    args = parser.parse_args()
    tasks: list[tuple[Kept, Path]] = []
    missing = 0
    for one in read_kept(args.folder):
        folder = folder_of(one.episode.name, args.work or work_folder(one.split))
        if folder is None:
            missing += 1
        else:
            tasks.append((one, folder))
    with Pool() as pool:
        for number, kept in enumerate(pool.imap(judged_again, tasks), 1):
            keep(kept, args.folder / f"{kept.episode.name}.json")
            if number % 5 == 0:
                print(f"  {number} of {len(tasks)}", flush=True)
    print(f"{len(tasks)} judged again, {missing} without a journal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
