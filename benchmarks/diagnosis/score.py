"""How often the diagnosis was right, how soon, and how often it cried wolf.

From the committed episodes alone. Of an episode counts what was named first for most of the
second half of the fault (of a healthy one: of all that follows the warm-up). Light and busy health
are one class here: to say of either that all is well is right.

    .venv/bin/python -m benchmarks.diagnosis.score [FOLDER] [--split test] [--discarded] [--again]
        [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.diagnosis.episodes import RESULTS, Kept, read_kept
from service.drill.result import EpisodeResult
from service.drill.watch import Turn

HEALTHY, UNSURE, SILENT = "healthy", "indeterminate", "no answer"
THIN = "telemetry_degraded"
APART = ("invalid_output", "out_of_memory", "load_failure", "telemetry_degraded")


@dataclass(frozen=True, slots=True)
class Judged:
    """One episode. Seconds; None where there is no such moment."""

    episode: EpisodeResult
    truth: str
    answer: str
    to_detect_s: float | None
    onset_error_s: float | None
    to_clear_s: float | None
    alarms: int
    watched_s: float

    @property
    def is_right(self) -> bool:
        return self.answer == self.truth


def present(kept: Kept) -> EpisodeResult:
    """With the verdicts of the version that judged the journal last."""
    if kept.again is None:
        return kept.episode
    return msgspec.structs.replace(kept.episode, verdicts=kept.again)


def judge(episode: EpisodeResult) -> Judged:
    truth = HEALTHY if episode.symptom.startswith("healthy") else episode.symptom
    phases, turns = episode.phases, episode.verdicts
    on_s, off_s = episode.on_s, episode.off_s
    if on_s is None or off_s is None:
        begin_s, end_s = phases.reference_at_s, phases.end_s
        return Judged(
            episode, truth, named_most(turns, begin_s, end_s), None, None, None,
            alarms(turns, begin_s, end_s), end_s - begin_s,
        )  # fmt: skip
    right = [turn for turn in turns if turn.top == truth and turn.at_s >= on_s]
    first_s = episode.first_harmed_s
    onset_s = right[0].onset_s if right else None
    # a server that took over from a good one was not watched in its reference
    begin_s = phases.reference_at_s if turns and turns[0].at_s < on_s - 2 else on_s
    return Judged(
        episode,
        truth,
        named_most(turns, (on_s + off_s) / 2, off_s),
        max(0.0, right[0].at_s - (on_s if first_s is None else first_s)) if right else None,
        None if onset_s is None else abs(onset_s - on_s),
        cleared_s(turns, off_s),
        alarms(turns, begin_s, on_s),
        on_s - begin_s,
    )


def said(turn: Turn) -> str:
    """A fault by its first finding, and so a record that is too thin; else the verdict."""
    if turn.verdict == "fault" or turn.top == THIN:
        return turn.top or UNSURE
    return turn.verdict


def spans(turns: Sequence[Turn], begin_s: float, end_s: float) -> list[tuple[float, str]]:
    """For how long each answer stood in a span."""
    found: list[tuple[float, str]] = []
    ends_s = [turn.at_s for turn in turns[1:]] + [end_s]
    for turn, turn_end_s in zip(turns, ends_s, strict=False):
        until_s = min(end_s, turn_end_s)
        length_s = until_s - max(begin_s, turn.at_s)
        if length_s > 0:
            found.append((length_s, said(turn)))
    return found


def named_most(turns: Sequence[Turn], begin_s: float, end_s: float) -> str:
    """What stood longest."""
    times: dict[str, float] = defaultdict(float)
    for length_s, answer in spans(turns, begin_s, end_s):
        times[answer] += length_s
    return max(times, key=lambda answer: times[answer]) if times else SILENT


def alarms(turns: Sequence[Turn], begin_s: float, end_s: float) -> int:
    """How often a fault was named anew while there was none."""
    answers = [answer for _, answer in spans(turns, begin_s, end_s)]
    calm = (HEALTHY, UNSURE)
    pairs = zip([HEALTHY, *answers], answers, strict=False)
    return sum(before in calm and after not in calm for before, after in pairs)


def cleared_s(turns: Sequence[Turn], off_s: float) -> float | None:
    """From the end of the fault to the first word that all is well, which stood to the end."""
    last: float | None = None
    for turn in turns:
        if turn.verdict != "healthy":
            last = None
        elif last is None:
            last = turn.at_s
    return None if last is None else max(0.0, last - off_s)


# --- sums ----------------------------------------------------------------------------------


def score(judged: Sequence[Judged]) -> dict[str, Any]:
    """Of the classes that make requests late and of health; the others are counted apart."""
    main = [one for one in judged if one.truth not in APART]
    apart = [one for one in judged if one.truth in APART]
    detected = [one.to_detect_s for one in main if one.to_detect_s is not None]
    onsets = [one.onset_error_s for one in main if one.onset_error_s is not None]
    clears = [one.to_clear_s for one in main if one.to_clear_s is not None]
    hours = sum(one.watched_s for one in judged) / 3600
    return {
        "episodes": len(main),
        "top_1": share(main),
        "macro_f1": macro_f1(main),
        "faults_detected": [len(detected), sum(one.truth != HEALTHY for one in main)],
        "to_detect_s": quantiles(detected),
        "onset_error_s": quantiles(onsets),
        "to_clear_s": quantiles(clears),
        "false_alarms": sum(one.alarms for one in judged),
        "watched_hours": round(hours, 3),
        "false_alarms_per_hour": round(sum(one.alarms for one in judged) / hours, 2)
        if hours
        else None,
        "indeterminate": sum(one.answer == UNSURE for one in main),
        "apart": {"episodes": len(apart), "top_1": share(apart)},
        "classes": by_class(judged),
    }


def share(judged: Sequence[Judged]) -> float | None:
    return round(sum(one.is_right for one in judged) / len(judged), 4) if judged else None


def macro_f1(judged: Sequence[Judged]) -> float | None:
    """Unweighted over the classes that occur."""
    scores: list[float] = []
    for truth in {one.truth for one in judged}:
        right = sum(one.truth == truth and one.is_right for one in judged)
        told = sum(one.answer == truth for one in judged)
        was = sum(one.truth == truth for one in judged)
        scores.append(2 * right / (told + was))
    return round(sum(scores) / len(scores), 4) if scores else None


def by_class(judged: Sequence[Judged]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for truth in sorted({one.truth for one in judged}):
        mine = [one for one in judged if one.truth == truth]
        told = sum(one.answer == truth for one in judged)
        right = sum(one.is_right for one in mine)
        found[truth] = {
            "episodes": len(mine),
            "recall": round(right / len(mine), 4),
            "precision": round(right / told, 4) if told else 0.0,
        }
    return found


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    if not ordered:
        return None
    picks = {"p50": 0.5, "p95": 0.95}
    return {
        name: round(ordered[min(len(ordered) - 1, int(at * len(ordered)))], 2)
        for name, at in picks.items()
    }


def confusion(judged: Sequence[Judged]) -> str:
    """Rows are what was done, columns what was named."""
    truths = sorted({one.truth for one in judged})
    answers = sorted({one.answer for one in judged} | set(truths))
    counts = Counter((one.truth, one.answer) for one in judged)
    lines = ["| done / named | " + " | ".join(answers) + " |", "|---" * (len(answers) + 1) + "|"]
    for truth in truths:
        cells = [str(counts[truth, answer] or "") for answer in answers]
        lines.append(f"| {truth} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(found: dict[str, Any], judged: Sequence[Judged]) -> str:
    rows = [
        (name, found[name])
        for name in (
            "episodes", "top_1", "macro_f1", "faults_detected", "to_detect_s", "onset_error_s",
            "to_clear_s", "false_alarms", "watched_hours", "false_alarms_per_hour", "apart",
        )
    ]  # fmt: skip
    lines = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    wrong = [f"- {one.episode.name}: {one.answer}" for one in judged if not one.is_right]
    return "\n".join([*lines, "", confusion(judged), "Wrong:", "", *(wrong or ["- none"]), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--split", help="only episodes of this one")
    parser.add_argument(
        "--discarded", action="store_true", help="count those too that do not count"
    )
    parser.add_argument(
        "--again", action="store_true", help="by what `again` says of the journals, where it has"
    )
    parser.add_argument("--out", type=Path, help="write score.json and score.md here")
    args = parser.parse_args()
    kept = [one for one in read_kept(args.folder) if args.split in (None, one.split)]
    counted = [
        present(one) if args.again else one.episode
        for one in kept
        if args.discarded or not one.episode.discarded
    ]
    judged = [judge(episode) for episode in counted]
    if not judged:
        print(f"{args.folder}: no episodes that count, of {len(kept)}")
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
