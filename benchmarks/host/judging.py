"""What telemetry said of pauses, against what was done: found, how long, whom they delayed, and
what it said of nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

CAUSES = {"gc": ("gc",), "sleep": ("loop_blocked",), "spin": ("loop_blocked", "off_cpu")}
FOUND, FALSE = 0.95, 0.05  # shares: at least, and at most


@dataclass(frozen=True)
class Injected:
    """What was done to which process, by its own stamps; `gaps` are what clients saw of it."""

    process: str
    kind: str
    begin_ns: int
    end_ns: int
    gaps: dict[str, int] = field(default_factory=dict)

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass
class Verdict:
    """One injected pause and what telemetry said of it: time in all, and the pause that
    explains most of it; None when less than half is explained."""

    injected: Injected
    said_ns: int
    reported: dict[str, Any] | None

    @property
    def error(self) -> float:
        """Share by which the reported time is off."""
        return abs(self.said_ns - self.injected.length_ns) / self.injected.length_ns


def judge(injected: list[Injected], reported: list[dict[str, Any]]) -> list[Verdict]:
    """What the pauses that met each injected one say of it."""
    found: list[Verdict] = []
    for one in injected:
        said = [
            (_said_ns(one, pause), pause)
            for pause in reported
            if pause["process"] == one.process and pause["cause"] in CAUSES[one.kind]
        ]
        said_ns = sum(part_ns for part_ns, _ in said)
        _, most = max(said, key=lambda pair: pair[0], default=(0, None))
        found.append(Verdict(one, said_ns, most if 2 * said_ns >= one.length_ns else None))
    return found


def uninjected(
    done: list[Injected], reported: list[dict[str, Any]], since_ns: int
) -> list[dict[str, Any]]:
    """Pauses since then that met nothing of what was done to their process, heaps included."""
    return [
        pause
        for pause in reported
        if pause["begin_ns"] >= since_ns
        and not any(
            one.process == pause["process"]
            and one.begin_ns < pause["end_ns"]
            and pause["begin_ns"] < one.end_ns
            for one in done
        )
    ]


def _said_ns(injected: Injected, pause: dict[str, Any]) -> int:
    """What the pause says was lost, if it met the injected one: all of a pause that was found
    by its stamps, for too long is wrong as well; its share of one that was only counted."""
    length_ns = pause["end_ns"] - pause["begin_ns"]
    begin_ns = max(injected.begin_ns, pause["begin_ns"])
    common_ns = max(0, min(injected.end_ns, pause["end_ns"]) - begin_ns)
    if pause["cause"] == "off_cpu":
        return int(common_ns * pause["lost_ns"] / length_ns)
    return int(pause["lost_ns"]) if common_ns else 0


def summary(verdicts: list[Verdict]) -> dict[str, dict[str, Any]]:
    """Shares by process and kind, and of all."""
    groups: dict[str, list[Verdict]] = {"all": verdicts}
    for verdict in verdicts:
        name = f"{verdict.injected.process} {verdict.injected.kind}"
        groups.setdefault(name, []).append(verdict)
    return {name: _shares(group) for name, group in groups.items()}


def _shares(group: list[Verdict]) -> dict[str, Any]:
    found = [verdict for verdict in group if verdict.reported is not None]
    errors = [verdict.error for verdict in found]
    harmed = sum(len(verdict.injected.gaps) for verdict in group)
    losses = [loss for verdict in found for loss in _losses(verdict)]
    true_ns = sum(verdict.injected.length_ns for verdict in group)
    return {
        "injected": len(group),
        "found": len(found),
        "within_10_pct": sum(error <= 0.10 for error in errors),
        "error_median_pct": _median_pct(errors),
        "error_max_pct": round(100 * max(errors), 2) if errors else None,
        "time_ratio": round(sum(verdict.said_ns for verdict in group) / true_ns, 4),
        "streams_harmed": harmed,
        "of_them_named": len(losses),
        "loss_error_median_pct": _median_pct(losses),
    }


def _median_pct(values: list[float]) -> float | None:
    return round(100 * statistics.median(values), 2) if values else None


def holds(overall: dict[str, Any], false_causes: Counter[str]) -> bool:
    """Whether enough of all injected faults are found, with their length and their victims, and few
    that are false. Without a harmed stream nothing was loaded, which shows nothing."""
    injected, harmed = overall["injected"], overall["streams_harmed"]
    false = false_causes.total() - false_causes["off_cpu"]
    return (
        min(overall["found"], overall["within_10_pct"]) >= FOUND * injected
        and harmed > 0
        and overall["of_them_named"] >= FOUND * harmed
        and false <= FALSE * injected
    )


def _losses(verdict: Verdict) -> list[float]:
    """For each harmed stream that is named: by what share of the pause its loss is off the gap
    that its client saw."""
    assert verdict.reported is not None
    named = {v["request_id"]: v["lost_ns"] for v in verdict.reported["victims"]}
    length_ns = verdict.injected.length_ns
    gaps = verdict.injected.gaps
    return [abs(named[name] - gaps[name]) / length_ns for name in gaps if name in named]


def row(verdict: Verdict) -> dict[str, object]:
    """What is kept of one pause: enough to sum up again."""
    reported = verdict.reported
    return {
        "process": verdict.injected.process,
        "kind": verdict.injected.kind,
        "length_ns": verdict.injected.length_ns,
        "said_ns": verdict.said_ns,
        "cause": None if reported is None else reported["cause"],
        "detail": None if reported is None else reported["detail"],
        "streams_harmed": len(verdict.injected.gaps),
        "losses_off": [round(off, 6) for off in _losses(verdict)] if reported else [],
    }
