"""The verdicts of this version on episodes that an earlier version recorded.

A journal gives the verdict that was given live, so a change of the diagnosis needs no new episodes:
each kept journal is diagnosed again, and the verdicts with their times are kept beside the live
ones. A verdict counts from half a polling interval later, as the live ones did on average. The time
of the first harmed request is computed again from the clients' log.

    .venv/bin/python -m benchmarks.diagnosis.again [FOLDER | --records FOLDER] [--out FOLDER]

The results are left as they are; copies with what is said now go to `--out`, for `score --again`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import Kept, keep, read_kept, say, work_folder
from benchmarks.diagnosis.records import (
    SLO_FILE,
    add_records,
    add_results,
    folder_of,
    read_clients,
    results_beside,
)
from diagnosis.detection.reference import Reference
from diagnosis.verdicts.baseline_file import BaselineError
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from diagnosis.verdicts.offline import baseline_of
from lab.drills.outcome.result import (
    EpisodeResult,
    first_harmed_ns,
    reference_requests,
    thresholds_of,
)
from lab.drills.watch import EVERY_S, PollSample, VerdictChange, timeline
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import open_journal
from telemetry.requests.slo_policy import policy_of

_LATER_NS = int(EVERY_S / 2 * 1e9)


def turns_of(folder: Path, begin_ns: int) -> list[VerdictChange]:
    """Every change of the verdict over the journal in `folder`, by the SLO that is kept there."""
    slo = folder / SLO_FILE
    policy = policy_of(str(slo) if slo.exists() else None)
    diagnoser = Diagnoser(_baseline(folder), policy)
    found: list[tuple[int, Diagnosis]] = []
    for fact in open_journal(folder / "journal").facts():
        diagnoser.on_facts([fact])
        said = diagnoser.diagnosis()
        if not found or said is not found[-1][1]:
            found.append((fact_ns(fact), said))
    return turns_of_verdicts(found, begin_ns)


def turns_of_verdicts(found: Iterable[tuple[int, Diagnosis]], begin_ns: int) -> list[VerdictChange]:
    """As if they had been polled, half a polling interval later."""
    looks: list[PollSample] = []
    for fact_at_ns, said in found:
        at_ns = fact_at_ns + _LATER_NS
        answer = msgspec.Raw(msgspec.json.encode(said))
        looks.append(PollSample(at_ns=at_ns, until_ns=at_ns, polls=1, answer=answer))
    return timeline(looks, begin_ns)


def _baseline(folder: Path) -> Reference | None:
    journal = folder / "reference.journal"
    if not journal.exists():
        return None
    try:
        return baseline_of(open_journal(journal))
    except BaselineError:
        return None


def judged_again(task: tuple[Kept, Path]) -> Kept | None:
    """None for an episode whose record is not in the folder."""
    kept, records = task
    with tempfile.TemporaryDirectory() as work:
        folder = folder_of(kept.episode.name, Path(work), records)
        if folder is None:
            return None
        begin_ns = kept.episode.begin_ns
        first_s, turns = harmed_s(kept.episode, folder), turns_of(folder, begin_ns)
    episode = msgspec.structs.replace(kept.episode, first_harmed_s=first_s)
    return msgspec.structs.replace(kept, episode=episode, again=turns)


def harmed_s(episode: EpisodeResult, folder: Path) -> float | None:
    """When the first harmed request was due, as `EpisodeResult` has it."""
    if episode.on_s is None:
        return None
    on_ns = episode.begin_ns + int(episode.on_s * 1e9)
    log = read_clients(folder)
    limits = thresholds_of(reference_requests(log, on_ns, episode.phases.reference_s))
    if limits is None:
        return None
    harmed_ns = first_harmed_ns(log, limits, on_ns)
    return None if harmed_ns is None else round((harmed_ns - episode.begin_ns) / 1e9, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_results(parser)
    add_records(parser)
    parser.add_argument(
        "--out", type=Path, default=work_folder("again"), help="where the copies go"
    )
    args = parser.parse_args()
    kept = read_kept(args.folder or results_beside(args.records))
    missing = 0
    with Pool() as pool:
        found = pool.imap(judged_again, [(one, args.records) for one in kept])
        for one, judged in zip(kept, found, strict=True):
            if judged is None:
                missing += 1
                continue
            keep(judged, args.out / f"{judged.episode.name}.json")
            named = dict.fromkeys(turn.top for turn in judged.again or [] if turn.top)
            say(f"{one.episode.name}: {', '.join(named) or 'nothing'}")
    print(f"{len(kept) - missing} judged again, {missing} without a record")
    print(f"score them: python -m benchmarks.diagnosis.score --again {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
