"""Score of the diagnosis: accuracy, time to detect, time to clear, false alarms.

It is computed from the results of episodes alone. The answer of an episode is the first finding for
most of the second half of the fault (of a healthy one: of all after the warm-up). Light and busy
health are one class. Two kinds of alarm are counted apart: one that says that the machine is slow
where it was, by a pacer on the engine's core that the server does not know of or by stolen CPU
time; and one of the warm-up, when there is no baseline but the SLO, where clients waited for longer
than the SLO allows.

    .venv/bin/python -m benchmarks.diagnosis.score [FOLDER | --records FOLDER] [--split test]
        [--discarded] [--again] [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.diagnosis.answers import (
    HEALTHY,
    UNSURE,
    cleared_s,
    first_named,
    named_most,
    said,
)
from benchmarks.diagnosis.episodes import Kept, read_kept
from benchmarks.diagnosis.gauges import GAUGES
from benchmarks.diagnosis.records import add_records, add_results, results_beside
from diagnosis.thresholds import REFERENCE_NS
from lab.drills.outcome.result import EpisodeResult
from lab.drills.pace import MachineSpeed
from lab.drills.spec import Phase
from lab.drills.watch import VerdictChange
from telemetry.numbers.quantiles import rank
from telemetry.requests.slo_policy import DEFAULT_POLICY

OF_MACHINE = ("throttled", "memory_bandwidth", "cpu_starvation")
_STOLEN = 0.05  # share of a core that is stolen from one, in a second
Pair = tuple[str, str]  # what was done, what was named
APART = (
    "invalid_output",
    "out_of_memory",
    "engine_hung",
    "step_failure",
    "load_failure",
    "telemetry_degraded",
)


@dataclass(frozen=True, slots=True)
class Judged:
    """One episode. Seconds; None where there is no such moment. `to_detect_s` is from the first
    harmed request (the onset where none was harmed while the fault lasted) to the first right
    finding of that time, `from_onset_s` from the injection of the fault. `alarms` are false ones,
    `alarms_of_machine` those of a machine that was slow, `alarms_of_slo` those of an SLO that was
    missed."""

    episode: EpisodeResult
    truth: str
    answer: str
    to_detect_s: float | None
    from_onset_s: float | None
    onset_error_s: float | None
    to_clear_s: float | None
    alarms: int
    alarms_of_machine: int
    alarms_of_slo: int
    watched_s: float

    @property
    def is_right(self) -> bool:
        return self.answer == self.truth


def present(kept: Kept) -> EpisodeResult:
    """The episode with the verdicts of the version that judged the journal last."""
    if kept.again is None:
        return kept.episode
    return msgspec.structs.replace(kept.episode, verdicts=kept.again)


def truth_of(episode: EpisodeResult) -> str:
    return HEALTHY if episode.symptom.startswith("healthy") else episode.symptom


def judge_kept(kept: Kept, again: bool = False) -> Judged:
    """Judge an episode, with what is known of the machine."""
    return judge(present(kept) if again else kept.episode, machine_speed(kept))


def machine_speed(kept: Kept) -> MachineSpeed:
    """Over the traffic of an episode, compared with as long a stretch as a diagnosis learns."""
    episode, gauges = kept.episode, kept.gauges
    taken: set[int] = set()
    if gauges is not None:
        stolen, first = GAUGES.index("steal"), (gauges.begin_ns - episode.begin_ns) // 10**9
        taken = {first + at for at, row in enumerate(gauges.rows) if row[stolen] > _STOLEN}
    return MachineSpeed(REFERENCE_NS / 1e9, episode.paces, taken)


def judge(episode: EpisodeResult, machine: MachineSpeed | None = None) -> Judged:
    truth = truth_of(episode)
    phases, turns = episode.phases, episode.verdicts
    broken_until_s = phases.reference_at_s if breaks_slo(episode) else None
    on_s, off_s = episode.on_s, episode.off_s
    if on_s is None or off_s is None:
        begin_s, end_s = phases.reference_at_s, phases.end_s
        return Judged(
            episode, truth, named_most(turns, begin_s, end_s), None, None, None, None,
            *alarms(turns, begin_s, end_s, machine, broken_until_s), end_s - begin_s,
        )  # fmt: skip
    right = first_named(turns, truth, on_s, off_s)
    onset_s = None if right is None else right.onset_s
    # a server that took over from a good one was not watched in its reference
    begin_s = phases.reference_at_s if turns and turns[0].at_s < on_s - 2 else on_s
    return Judged(
        episode,
        truth,
        named_most(turns, (on_s + off_s) / 2, off_s),
        None if right is None else max(0.0, right.at_s - harmed_s(episode, on_s, off_s)),
        None if right is None else right.at_s - on_s,
        None if onset_s is None else abs(onset_s - on_s),
        cleared_s(turns, off_s),
        *alarms(turns, begin_s, on_s, machine, broken_until_s),
        on_s - begin_s,
    )


def harmed_s(episode: EpisodeResult, on_s: float, off_s: float) -> float:
    """When the first request was harmed; the onset where none was before the fault's end."""
    first_s = episode.first_harmed_s
    return on_s if first_s is None or first_s >= off_s else first_s


def breaks_slo(episode: EpisodeResult) -> bool:
    """Whether the median TTFT of the warm-up missed the default SLO."""
    warm_up = episode.clients.get(Phase.WARM_UP.value)
    slo_ms = DEFAULT_POLICY.of("").ttft_ns / 1e6
    return warm_up is not None and (warm_up.ttft_p50 or 0.0) > slo_ms


def alarms(
    turns: Sequence[VerdictChange],
    begin_s: float,
    end_s: float,
    machine: MachineSpeed | None = None,
    broken_until_s: float | None = None,
) -> tuple[int, int, int]:
    """Alarms without a fault: false ones; those on a machine that was slow since their onset; and
    those while the SLO was missed."""
    false = of_machine = of_slo = 0
    was_calm = True
    for turn in turns:
        is_calm = said(turn) in (HEALTHY, UNSURE)
        if turn.at_s < end_s and was_calm and not is_calm and _ends_after(turns, turn, begin_s):
            if said(turn) in OF_MACHINE and machine and _was_slow(turn, machine):
                of_machine += 1
            elif broken_until_s is not None and turn.at_s < broken_until_s:
                of_slo += 1
            else:
                false += 1
        was_calm = is_calm
    return false, of_machine, of_slo


def _ends_after(turns: Sequence[VerdictChange], alarm: VerdictChange, begin_s: float) -> bool:
    """Whether the alarm still stood at `begin_s`."""
    later = (turn for turn in turns if turn.at_s > alarm.at_s)
    calm = next((turn.at_s for turn in later if said(turn) in (HEALTHY, UNSURE)), None)
    return calm is None or calm > begin_s


def _was_slow(alarm: VerdictChange, machine: MachineSpeed) -> bool:
    onset_s = alarm.at_s if alarm.onset_s is None else alarm.onset_s
    return machine.was_slow(onset_s, alarm.at_s)


# --- sums ----------------------------------------------------------------------------------


def score(judged: Sequence[Judged]) -> dict[str, Any]:
    """The score of the classes that delay requests and of health; the others are counted apart."""
    main = [one for one in judged if one.truth not in APART]
    apart = [one for one in judged if one.truth in APART]
    detected = [one.to_detect_s for one in main if one.to_detect_s is not None]
    onsets = [one.onset_error_s for one in main if one.onset_error_s is not None]
    clears = [one.to_clear_s for one in main if one.to_clear_s is not None]
    hours = sum(one.watched_s for one in judged) / 3600
    return {
        "episodes": len(main),
        "top_1": top_1(pairs_of(main)),
        "macro_f1": macro_f1(pairs_of(main)),
        "faults_detected": [len(detected), sum(one.truth != HEALTHY for one in main)],
        "to_detect_s": quantiles(detected),
        "from_onset_s": quantiles(one.from_onset_s for one in main if one.from_onset_s is not None),
        "onset_error_s": quantiles(onsets),
        "to_clear_s": quantiles(clears),
        "false_alarms": sum(one.alarms for one in judged),
        "alarms_of_a_slow_machine": sum(one.alarms_of_machine for one in judged),
        "alarms_of_a_broken_slo": sum(one.alarms_of_slo for one in judged),
        "watched_hours": round(hours, 3),
        "false_alarms_per_hour": round(sum(one.alarms for one in judged) / hours, 2)
        if hours
        else None,
        "indeterminate": sum(one.answer == UNSURE for one in main),
        "apart": {"episodes": len(apart), "top_1": top_1(pairs_of(apart))},
        "classes": by_class(pairs_of(judged)),
    }


def pairs_of(judged: Iterable[Judged]) -> list[Pair]:
    return [(one.truth, one.answer) for one in judged]


def top_1(pairs: Sequence[Pair]) -> float | None:
    right = sum(truth == answer for truth, answer in pairs)
    return round(right / len(pairs), 4) if pairs else None


def macro_f1(pairs: Sequence[Pair]) -> float | None:
    """Unweighted over the classes that occur."""
    scores: list[float] = []
    for one in {truth for truth, _ in pairs}:
        right = sum(truth == answer == one for truth, answer in pairs)
        told = sum(answer == one for _, answer in pairs)
        was = sum(truth == one for truth, _ in pairs)
        scores.append(2 * right / (told + was))
    return round(sum(scores) / len(scores), 4) if scores else None


def by_class(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    counts = Counter(pairs)
    for truth in sorted({truth for truth, _ in pairs}):
        episodes = sum(count for (one, _), count in counts.items() if one == truth)
        told = sum(count for (_, answer), count in counts.items() if answer == truth)
        right = counts[truth, truth]
        found[truth] = {
            "episodes": episodes,
            "recall": round(right / episodes, 4),
            "precision": round(right / told, 4) if told else 0.0,
        }
    return found


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    if not ordered:
        return None
    picks = {"p50": 0.5, "p95": 0.95}
    return {name: round(ordered[rank(at, len(ordered)) - 1], 2) for name, at in picks.items()}


def confusion(pairs: Sequence[Pair]) -> str:
    """Rows are injected faults, columns findings."""
    truths = sorted({truth for truth, _ in pairs})
    answers = sorted({answer for _, answer in pairs} | set(truths))
    counts = Counter(pairs)
    lines = ["| done / named | " + " | ".join(answers) + " |", "|---" * (len(answers) + 1) + "|"]
    for truth in truths:
        cells = [str(counts[truth, answer] or "") for answer in answers]
        lines.append(f"| {truth} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(found: dict[str, Any], judged: Sequence[Judged]) -> str:
    rows = [
        (name, found[name])
        for name in (
            "episodes", "top_1", "macro_f1", "faults_detected", "to_detect_s", "from_onset_s",
            "onset_error_s", "to_clear_s", "false_alarms", "alarms_of_a_slow_machine",
            "alarms_of_a_broken_slo", "watched_hours", "false_alarms_per_hour", "apart",
        )
    ]  # fmt: skip
    lines = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    wrong = [f"- {one.episode.name}: {one.answer}" for one in judged if not one.is_right]
    table = confusion(pairs_of(judged))
    return "\n".join([*lines, "", table, "Wrong:", "", *(wrong or ["- none"]), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_results(parser)
    add_records(parser)
    parser.add_argument("--split", help="only episodes of this one")
    parser.add_argument(
        "--discarded", action="store_true", help="count those too that do not count"
    )
    parser.add_argument(
        "--again", action="store_true", help="by what `again` says of the journals, where it has"
    )
    parser.add_argument("--out", type=Path, help="write score.json and score.md here")
    args = parser.parse_args()
    folder = args.folder or results_beside(args.records)
    kept = [one for one in read_kept(folder) if args.split in (None, one.split)]
    counted = [one for one in kept if args.discarded or not one.episode.discarded]
    judged = [judge_kept(one, args.again) for one in counted]
    if not judged:
        print(f"{folder}: no episodes that count, of {len(kept)}")
        return 1
    found = {"left_out": len(kept) - len(counted), **score(judged)}
    text = markdown(found, judged)
    print(text)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(found), indent=1)
        (args.out / "score.json").write_bytes(data + b"\n")
        (args.out / "score.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
