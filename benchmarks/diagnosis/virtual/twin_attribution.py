"""Attributed against true delay of simulated faults: virtual servers beside their clean twins.

The symptom is taken as known, and the intervention of it that explains most is used. So this
measures the replay and its interventions, and nothing else: virtual servers have only simulated
noise, and the clean twin has the same requests at the same moments.

    .venv/bin/python -m benchmarks.diagnosis.virtual.twin_attribution [--seeds 3] [--first 2000]
        [--classes A,B] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import RESULTS
from benchmarks.diagnosis.weighing import Pair, TwinLatencies, affected, of, summary, weigh
from diagnosis.root_cause.counterfactual import symptoms, timelines_of
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.root import ACTIONS
from diagnosis.spans import Span
from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import NotReplayable, read_runs
from lab.twins.registry import TWINS, build_clean, build_twin
from lab.twins.simulated_run import REFERENCE
from lab.twins.twin import Twin
from telemetry.facts.records import fact_ns

OUT = RESULTS.parent / "twin_attribution.json"


def question_of(twin: Twin) -> Question:
    """Raises NotReplayable."""
    assert twin.onset_ns is not None
    run = read_runs(twin.facts)[-1]
    window = Span(twin.onset_ns, twin.end_ns or fact_ns(twin.facts[-1]))
    if twin.before is not None:
        started = read_runs(twin.before)[-1].started
        return Question(run, fit_iterations([run]), None, window, started)
    before = Span(REFERENCE.begin_ns, twin.onset_ns)
    return Question(run, fit_iterations([run]), before, window)


def compared(task: tuple[str, str, int]) -> Pair:
    """One twin with the fault, and its clean twin."""
    symptom, mechanism, seed = task
    name = f"{symptom}-{mechanism}-{seed}"
    twin, clean = build_twin(symptom, seed, mechanism), build_clean(symptom, seed, mechanism)
    try:
        question = question_of(twin)
        was, now = timelines_of(twin.facts), timelines_of(clean)
        came = [one.accepted for one in was if question.window.has(one.accepted.at_ns)]
        innocent = [o.request_id for o in came if not {o.request_id, o.tenant} & twin.culprits]
        mine = affected(innocent, [one.request_id for one in came])
        before = question.reference or Span(0, 0)
        met = TwinLatencies(
            faulty=symptoms(of(mine, was), question.window),
            clean=symptoms(now, question.window),
            faulty_before=symptoms(was, before),
            clean_before=symptoms(now, before),
        )
        return weigh(name, symptom, question, mine, met)
    except NotReplayable as error:
        return Pair(name=name, named=symptom, why_not=str(error))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of each mechanism")
    parser.add_argument("--first", type=int, default=2000, help="the first seed")
    parser.add_argument("--classes", help="only these, separated by commas")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    names = args.classes.split(",") if args.classes else [symptom.value for symptom in ACTIONS]
    tasks = [
        (name, mechanism, seed)
        for seed in range(args.first, args.first + args.seeds)
        for name in names
        for mechanism in TWINS[name]
    ]
    pairs: list[Pair] = []
    with Pool() as pool:
        for pair in pool.imap(compared, tasks):
            pairs.append(pair)
            said = pair.why_not or (
                f"{pair.cause} {pair.measure}: {pair.blamed_ms} of {pair.true_ms} ms"
            )
            print(f"  {pair.name}: {said}", flush=True)
    found = {**summary(pairs), "pairs": pairs}
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    print(msgspec.json.format(msgspec.json.encode(summary(pairs)), indent=1).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
