"""Attributed against true delay of real faults: episodes beside their clean twins.

A clean twin serves the same requests at the same moments without the fault. The true delay is how
much longer the affected requests took in the episode than in its twin; the attributed delay is what
the replay spares them when it removes the named cause. Both are means over the requests during the
fault that did not cause it (over all where there are hardly any others), of the latency that the
predicted gain is about. A true delay of less than three times the difference before the fault is
too small to be measured and does not count.

    .venv/bin/python -m benchmarks.diagnosis.episodes --split test
    .venv/bin/python -m benchmarks.diagnosis.episodes --split clean
    .venv/bin/python -m benchmarks.diagnosis.attribution [--records FOLDER] [--out FILE]

It needs the records of both series (see `records.py`): the committed ones hold a single pair.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import Kept, read_kept
from benchmarks.diagnosis.records import add_records, folder_of, read_clients, results_beside
from benchmarks.diagnosis.score import judge
from benchmarks.diagnosis.weighing import Pair, TwinLatencies, affected, of, summary, weigh
from benchmarks.machine import machine
from diagnosis.root_cause.counterfactual import Values, symptoms, timelines_of
from diagnosis.root_cause.question import Question
from diagnosis.spans import Span
from diagnosis.verdicts.baseline_file import read_baseline
from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import NotReplayable, read_runs
from telemetry.journal.journal_reader import open_journal
from telemetry.requests.phases import RequestTimeline


def phase_span(kept: Kept, begin_s: float, end_s: float) -> Span:
    begin_ns = kept.episode.begin_ns
    return Span(begin_ns + int(begin_s * 1e9), begin_ns + int(end_s * 1e9))


def served(folder: Path) -> list[RequestTimeline]:
    """All recorded requests."""
    return timelines_of(open_journal(folder / "journal").facts())


def affected_by(kept: Kept, folder: Path) -> frozenset[str]:
    window = _fault(kept)
    came = [one for one in read_clients(folder) if window.has(one.due_ns)]
    innocent = [one.request_id for one in came if not one.is_culprit]
    return affected(innocent, [one.request_id for one in came])


def _fault(kept: Kept) -> Span:
    return phase_span(kept, kept.episode.on_s or 0.0, kept.episode.off_s or 0.0)


def question_of(kept: Kept, folder: Path) -> Question:
    """Raises NotReplayable, JournalError, BaselineError."""
    episode, window = kept.episode, _fault(kept)
    assert episode.on_s is not None
    run = read_runs(open_journal(folder / "journal").facts())[-1]
    if episode.has_baseline:
        started = read_baseline(folder / "baseline.json").started
        return Question(run, fit_iterations([run]), None, window, started)
    before = phase_span(kept, episode.phases.reference_at_s, episode.on_s)
    return Question(run, fit_iterations([run]), before, window)


def compare(faulty: Kept, clean: Kept, folder: Path | None, twin_folder: Path | None) -> Pair:
    """Attributed and true delay of one episode."""
    name, named = faulty.episode.name, judge(faulty.episode).answer
    if folder is None or twin_folder is None:
        return Pair(name=name, named=named, why_not="its record was not kept")
    try:
        question = question_of(faulty, folder)
    except NotReplayable as error:
        return Pair(name=name, named=named, why_not=str(error))
    met = latencies_of(faulty, clean, folder, twin_folder)
    return weigh(name, named, question, affected_by(faulty, folder), met)


def latencies_of(faulty: Kept, clean: Kept, folder: Path, twin_folder: Path) -> TwinLatencies:
    """The latencies of the affected requests of the episode and of all in its twin, at the time of
    the fault; and of both before it."""
    episode, phases = faulty.episode, faulty.episode.phases
    was, now = served(folder), served(twin_folder)

    def of_twin(begin_s: float, end_s: float) -> Values:
        return symptoms(now, phase_span(clean, begin_s, end_s))

    reference = phases.reference_at_s, phases.fault_at_s
    return TwinLatencies(
        faulty=symptoms(of(affected_by(faulty, folder), was), _fault(faulty)),
        clean=of_twin(episode.on_s or 0.0, episode.off_s or 0.0),
        faulty_before=symptoms(was, phase_span(faulty, *reference)),
        clean_before=of_twin(*reference),
    )


def pairs_of(records: Path) -> Iterator[tuple[Kept, Kept]]:
    """Every episode that counts, with its clean twin."""
    kept = {one.episode.name: one for one in read_kept(results_beside(records))}
    for name, one in kept.items():
        twin = kept.get(f"healthy_{name}")
        if twin is not None and not one.episode.discarded and not twin.episode.discarded:
            yield one, twin


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_records(parser)
    parser.add_argument("--out", type=Path, help="write the pairs here")
    args = parser.parse_args()
    pairs: list[Pair] = []
    for one, twin in pairs_of(args.records):
        with tempfile.TemporaryDirectory() as work:
            folders = [folder_of(k.episode.name, Path(work), args.records) for k in (one, twin)]
            pair = compare(one, twin, *folders)
        pairs.append(pair)
        said = pair.why_not or f"{pair.cause} {pair.measure}: {pair.blamed_ms} of {pair.true_ms} ms"
        print(f"  {one.episode.name}: {said}", flush=True)
    if not pairs:
        print(f"{args.records}: no episode has its clean twin")
        return 1
    if args.out is not None:
        found = {"machine": machine(), **summary(pairs), "pairs": pairs}
        args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    print(msgspec.json.format(msgspec.json.encode(summary(pairs)), indent=1).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
