"""Is what the root cause blames what the fault cost? Episodes beside their clean twins.

A clean twin serves the same requests at the same moments and nothing is done to it. What the
requests that are nobody's fault waited longer in the episode than in its twin is the truth; what
the replay spares them when it takes the named cause away is the blame. Both are means over the
requests that came during the fault, of the symptom that the cause's promise is about. Where the
truth is not three times what the two differed by before anything was wrong, it is too small to be
measured and does not count.

    .venv/bin/python -m benchmarks.diagnosis.episodes --split test
    .venv/bin/python -m benchmarks.diagnosis.episodes --split clean
    .venv/bin/python -m benchmarks.diagnosis.attribution

It needs the records of both series (see `records.py`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import CLEAN, RESULTS, Kept, read_kept, work_folder
from benchmarks.diagnosis.records import folder_of
from benchmarks.diagnosis.score import judge
from benchmarks.machine import machine
from diagnosis.counterfactual import Values, explain, symptoms, timelines_of
from diagnosis.interventions import Cause, Edit, interventions
from diagnosis.question import Question, Span
from diagnosis.reference import read_baseline
from diagnosis.root import ACTIONS
from diagnosis.symptoms import Symptom
from service.drill.client import Sent
from service.drill.mechanism import TEST
from service.sim.recorded import NotReplayable, read_runs
from service.sim.replay_modelled import replay_modelled
from service.sim.turn_cost import fit_turns
from telemetry.journal_reader import open_journal
from telemetry.phases import RequestTimeline

OUT = RESULTS.parent / "attribution.json"
_FLOORS = 3.0


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One episode and its twin. Times in ms, of `measure`, a mean over the sufferers.

    `promised` and `kept` are shares of the measure that taking the cause away spares, by the
    replay and in truth. `why_not` says why there is no comparison, empty where there is one.
    """

    name: str
    named: str
    cause: str = ""
    measure: str = ""
    blamed_ms: float = 0.0
    true_ms: float = 0.0
    floor_ms: float = 0.0
    promised: float = 0.0
    kept: float = 0.0
    why_not: str = ""

    @property
    def counts(self) -> bool:
        return not self.why_not and self.true_ms > _FLOORS * self.floor_ms

    @property
    def error(self) -> float:
        return abs(self.blamed_ms - self.true_ms) / self.true_ms

    @property
    def regret(self) -> float:
        return abs(self.promised - self.kept) / self.kept


def phase_span(kept: Kept, begin_s: float, end_s: float) -> Span:
    begin_ns = kept.episode.begin_ns
    return Span(begin_ns + int(begin_s * 1e9), begin_ns + int(end_s * 1e9))


def served(folder: Path, with_culprits: bool) -> list[RequestTimeline]:
    """As they were, of all or of those that are nobody's fault."""
    found = timelines_of(open_journal(folder / "journal").facts())
    return found if with_culprits else of(innocents(folder), found)


def innocents(folder: Path) -> frozenset[str]:
    lines = (folder / "clients.jsonl").read_bytes().splitlines()
    sent = (msgspec.json.decode(line, type=Sent) for line in lines)
    return frozenset(one.request_id for one in sent if not one.is_culprit)


def of(ids: frozenset[str], timelines: Iterable[RequestTimeline]) -> list[RequestTimeline]:
    return [one for one in timelines if one.accepted.request_id in ids]


def question_of(kept: Kept, folder: Path) -> Question:
    """Raises NotReplayable, JournalError, BaselineError."""
    episode = kept.episode
    assert episode.on_s is not None
    assert episode.off_s is not None
    run = read_runs(open_journal(folder / "journal").facts())[-1]
    window = phase_span(kept, episode.on_s, episode.off_s)
    if episode.has_baseline:
        usual = read_baseline(folder / "baseline.json").started
        return Question(run, fit_turns([run]), None, window, usual)
    before = phase_span(kept, episode.phases.reference_at_s, episode.on_s)
    return Question(run, fit_turns([run]), before, window)


def compare(faulty: Kept, clean: Kept, folder: Path | None, twin_folder: Path | None) -> Pair:
    """The blame of one episode beside the truth."""
    episode = faulty.episode
    named = judge(episode).answer
    causes = ACTIONS.get(Symptom(named), ()) if named in set(Symptom) else ()
    if not causes:
        return Pair(name=episode.name, named=named, why_not="no scheduler's decision is to blame")
    if folder is None or twin_folder is None:
        return Pair(name=episode.name, named=named, why_not="its record was not kept")
    try:
        question = question_of(faulty, folder)
        gains = {gain.cause: gain for gain in explain(question).gains}
    except NotReplayable as error:
        return Pair(name=episode.name, named=named, why_not=str(error))
    cause = next((cause for cause in causes if cause in gains), None)
    if cause is None:
        return Pair(name=episode.name, named=named, why_not="the replay spares nobody anything")
    measure = gains[cause].symptom
    was, now = replayed(question, cause, innocents(folder))
    before, after = observed(faulty, clean, folder, twin_folder)
    if any(measure not in one for one in (was, now, before, after)):
        return Pair(name=episode.name, named=named, why_not="too few requests to compare")
    true_ms = before[measure] - after[measure]
    return Pair(
        name=episode.name,
        named=named,
        cause=cause.value,
        measure=measure,
        blamed_ms=round(was[measure] - now[measure], 2),
        true_ms=round(true_ms, 2),
        floor_ms=round(floor_of(faulty, clean, folder, twin_folder, measure), 2),
        promised=round(1 - now[measure] / was[measure], 4),
        kept=round(true_ms / before[measure], 4),
    )


def replayed(question: Question, cause: Cause, mine: frozenset[str]) -> tuple[Values, Values]:
    """Symptoms of the sufferers as they were, by the replay, and without the cause."""

    def lived(edit: Edit) -> list[RequestTimeline]:
        facts = replay_modelled(question.run, question.cost, edit.change(question))
        return of(mine, timelines_of(facts))

    was, now = lived(Edit()), lived(interventions(question)[cause])
    both = frozenset(one.accepted.request_id for one in now)
    return symptoms(of(both, was), question.window), symptoms(now, question.window)


def observed(faulty: Kept, clean: Kept, folder: Path, twin: Path) -> tuple[Values, Values]:
    """The same of the episode and of its twin, as they really were."""
    on_s, off_s = faulty.episode.on_s or 0.0, faulty.episode.off_s or 0.0
    was = symptoms(served(folder, with_culprits=False), phase_span(faulty, on_s, off_s))
    now = symptoms(served(twin, with_culprits=True), phase_span(clean, on_s, off_s))
    return was, now


def floor_of(faulty: Kept, clean: Kept, folder: Path, twin: Path, measure: str) -> float:
    """By how much the two differed before anything was wrong; 0 where that is not recorded."""
    phases = faulty.episode.phases
    begin_s, end_s = phases.reference_at_s, phases.fault_at_s
    one = symptoms(served(folder, with_culprits=True), phase_span(faulty, begin_s, end_s))
    other = symptoms(served(twin, with_culprits=True), phase_span(clean, begin_s, end_s))
    return abs(one[measure] - other[measure]) if measure in one and measure in other else 0.0


def summary(pairs: Sequence[Pair]) -> dict[str, object]:
    counted = [pair for pair in pairs if pair.counts]
    errors = [pair.error for pair in counted]
    regrets = [pair.regret for pair in counted if pair.kept > 0]
    return {
        "episodes": len(pairs),
        "compared": len(counted),
        "error_median": round(statistics.median(errors), 4) if errors else None,
        "error_p90": round(sorted(errors)[int(0.9 * len(errors))], 4) if errors else None,
        "promise_off_median": round(statistics.median(regrets), 4) if regrets else None,
        "promise_within_20_percent": sum(one <= 0.2 for one in regrets),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=work_folder(TEST))
    parser.add_argument("--clean-work", type=Path, default=work_folder(CLEAN))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    kept = {one.episode.name: one for one in read_kept(args.results)}
    pairs: list[Pair] = []
    for name, one in kept.items():
        twin = kept.get(f"healthy_{name}")
        if twin is None or one.episode.discarded or twin.episode.discarded:
            continue
        folder = folder_of(one.episode.name, args.work)
        pair = compare(one, twin, folder, folder_of(twin.episode.name, args.clean_work))
        pairs.append(pair)
        said = pair.why_not or f"{pair.cause} {pair.measure}: {pair.blamed_ms} of {pair.true_ms} ms"
        print(f"  {name}: {said}", flush=True)
    if not pairs:
        print(f"{args.results}: no episode has its clean twin")
        return 1
    found = {"machine": machine(), **summary(pairs), "pairs": pairs}
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    print(msgspec.json.format(msgspec.json.encode(summary(pairs)), indent=1).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
