"""What the present version says of episodes that were recorded by an earlier one.

A journal gives the verdict that was given live, so a change of the diagnosis needs no new episodes:
each journal that was kept is lived through again, and what is said, and since when, is kept
beside what was said live. An answer counts from half a look later, since that is how often the
live ones were asked for. When the first request was harmed is counted again from the clients' log.

    .venv/bin/python -m benchmarks.diagnosis.again [FOLDER] [--work DIR]
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import RESULTS, Kept, keep, read_kept, work_folder
from benchmarks.diagnosis.records import folder_of, read_clients
from diagnosis.classifier import Diagnoser
from diagnosis.offline import baseline_of
from diagnosis.reference import BaselineError, Reference
from service.drill.result import EpisodeResult, first_harmed_ns, limits_of, usual_of
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
    episode = msgspec.structs.replace(kept.episode, first_harmed_s=harmed_s(kept.episode, folder))
    return msgspec.structs.replace(kept, episode=episode, again=turns_of(folder, episode.begin_ns))


def harmed_s(episode: EpisodeResult, folder: Path) -> float | None:
    """When the first harmed request was due, as `EpisodeResult` has it."""
    if episode.on_s is None:
        return None
    on_ns = episode.begin_ns + int(episode.on_s * 1e9)
    log = read_clients(folder)
    limits = limits_of(usual_of(log, on_ns, episode.phases.reference_s))
    if limits is None:
        return None
    harmed_ns = first_harmed_ns(log, limits, on_ns)
    return None if harmed_ns is None else round((harmed_ns - episode.begin_ns) / 1e9, 3)


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
