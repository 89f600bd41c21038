"""The verdicts of this version on episodes that an earlier version recorded.

A journal gives the verdict that was given live, so a change of the diagnosis needs no new episodes:
each kept journal is diagnosed again, and the verdicts with their times are kept beside the live
ones. A verdict counts from half a polling interval later, as the live ones did on average. The time
of the first harmed request is computed again from the clients' log, with `--harm` nothing else.

    .venv/bin/python -m benchmarks.diagnosis.again [FOLDER | --records FOLDER] [--harm]
        [--out FOLDER]

The results are left as they are; copies with what is said now go to `--out`, for `score --again`,
or after `--harm` for `score`.
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
from lab.drills.registry import find
from lab.drills.traffic import Scene
from lab.drills.watch import EVERY_S, PollSample, VerdictChange, timeline
from service.config.settings import ConfigError
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
    """The changes of the verdict as if it had been polled, half a polling interval later."""
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
    """The episode judged again; None where its record is not in the folder."""
    kept, records = task
    with tempfile.TemporaryDirectory() as work:
        folder = folder_of(kept.episode.name, Path(work), records)
        if folder is None:
            return None
        harmed, turns = with_harm(kept, folder), turns_of(folder, kept.episode.begin_ns)
    return msgspec.structs.replace(harmed, again=turns)


def harmed_again(task: tuple[Kept, Path]) -> Kept | None:
    """The episode with a new time of its first harmed request only; None as for `judged_again`."""
    kept, records = task
    with tempfile.TemporaryDirectory() as work:
        folder = folder_of(kept.episode.name, Path(work), records)
        return None if folder is None else with_harm(kept, folder)


def with_harm(kept: Kept, folder: Path) -> Kept:
    episode = msgspec.structs.replace(kept.episode, first_harmed_s=harmed_s(kept.episode, folder))
    return msgspec.structs.replace(kept, episode=episode)


def harmed_s(episode: EpisodeResult, folder: Path) -> float | None:
    """When the first harmed request was due, as `EpisodeResult` has it."""
    on_ns, off_ns = episode.label.on_ns, episode.label.off_ns
    if on_ns is None or off_ns is None:
        return None
    log = read_clients(folder)
    limits = thresholds_of(reference_requests(log, on_ns, episode.phases.reference_s))
    if limits is None:
        return None
    harmed_ns = first_harmed_ns(log, limits, (on_ns, off_ns), adds=adds(episode))
    return None if harmed_ns is None else round((harmed_ns - episode.begin_ns) / 1e9, 3)


def adds(episode: EpisodeResult) -> bool:
    """Whether its fault added requests (`Mechanism.adds`); counts as so of a mechanism that is not
    known here."""
    assert episode.capacity is not None, f"{episode.name} had no traffic"
    try:
        mechanism = find(episode.symptom, episode.mechanism)
    except ConfigError:
        return True
    return mechanism.adds(
        Scene(
            seed=episode.seed,
            phases=episode.phases,
            capacity=episode.capacity,
            intensity=episode.intensity,
            load=episode.load,
            mix=mechanism.mix,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_results(parser)
    add_records(parser)
    parser.add_argument(
        "--out", type=Path, default=work_folder("again"), help="where the copies go"
    )
    parser.add_argument(
        "--harm", action="store_true", help="only when the first request was harmed"
    )
    args = parser.parse_args()
    kept = read_kept(args.folder or results_beside(args.records))
    missing = 0
    with Pool() as pool:
        judge = harmed_again if args.harm else judged_again
        found = pool.imap(judge, [(one, args.records) for one in kept])
        for one, judged in zip(kept, found, strict=True):
            if judged is None:
                missing += 1
                continue
            keep(judged, args.out / f"{judged.episode.name}.json")
            if args.harm:
                was_s, now_s = one.episode.first_harmed_s, judged.episode.first_harmed_s
                say(f"{one.episode.name}: first harm at {now_s} s, was {was_s} s")
                continue
            named = dict.fromkeys(turn.top for turn in judged.again or [] if turn.top)
            say(f"{one.episode.name}: {', '.join(named) or 'nothing'}")
    print(f"{len(kept) - missing} judged again, {missing} without a record")
    flag = "" if args.harm else "--again "
    print(f"score them: python -m benchmarks.diagnosis.score {flag}{args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
