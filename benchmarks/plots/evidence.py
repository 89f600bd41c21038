"""The diagnosis: accuracy, time to name a fault, attributed against true delay, sensitivity; and
replay errors."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots.style import BLUE, GREY, ORANGE, RED, SKY, Plot, at, labelled_bars, panels

_METHODS = {
    "phasescope": "phasescope", "trees": "trees", "n_sigma": "NSigma", "thresholds": "thresholds",
    "largest_phase": "largest phase",
}  # fmt: skip
_MEASURES = ("tpot p50", "tpot p99", "e2e p50", "e2e p99", "ttft p50", "ttft p99")


def diagnosis(data: dict[str, Any]) -> Figure:
    """Accuracy on the test episodes, all methods under live conditions."""
    figure, axes = panels(3, 9.2, 2.5, sharey=True)
    live = [data["live"][name] for name in _METHODS]
    colours = [BLUE] + [GREY] * (len(live) - 1)
    names = list(_METHODS.values())
    for one, key, title in (
        (axes[0], "top_1", "right cause, share of 80 episodes"),
        (axes[1], "macro_f1", "macro-F1 over 19 classes"),
    ):
        values = [figures[key] for figures in live]
        one.barh(range(len(live)), values, 0.65, color=colours)
        labelled_bars(one, names, values, "{:.2f}")
        one.set_title(title)
        one.set_xlim(0, 1.15)
    alarms = [figures["false_alarms_of_healthy_hour"] for figures in live]
    axes[2].barh(range(len(live)), alarms, 0.65, color=colours)
    labelled_bars(axes[2], names, alarms, "{}")
    axes[2].set_title("false alarms in an hour of health")
    return figure


def time_to_name(data: dict[str, Any]) -> Figure:
    """From the first harmed request to the first right word, each episode of the test a dot."""
    rows = [row for row in data["episodes"] if row["split"] == "test" and row["done"] != "healthy"]
    classes = sorted({row["done"] for row in rows}, reverse=True)
    latest_s = max(row["to_detect_s"] for row in rows if row["to_detect_s"] is not None)
    figure, (axes,) = panels(1, 7.2, 4.4)
    for place, one in enumerate(classes):
        mine = [row["to_detect_s"] for row in rows if row["done"] == one]
        named = [seconds for seconds in mine if seconds is not None]
        spread = [place + 0.15 * (number - 1.5) for number in range(len(named))]
        axes.plot(named, spread, "o", color=BLUE, ms=4)
        never = len(mine) - len(named)
        axes.plot([latest_s + 1.2] * never, [place] * never, "x", color=RED, ms=6)
    axes.set_yticks(range(len(classes)), classes)
    axes.axvline(latest_s + 0.6, color=GREY, lw=0.8)
    axes.set_xlabel("seconds from the first harmed request to its right name; x: never named")
    axes.set_title("72 faults on real servers, four of each class")
    return figure


def blame(real: dict[str, Any], twins: dict[str, Any]) -> Figure:
    """Delay that the replay attributes to the fault, beside the difference to a clean twin."""
    figure, axes = panels(2, 8.2, 3.9)
    for one, data, title in (
        (axes[0], real, "real servers beside clean reruns"),
        (axes[1], twins, "servers in virtual time beside clean lives"),
    ):
        pairs = [pair for pair in data["pairs"] if not pair["why_not"]]
        _diagonal(one, [(pair["true_ms"], pair["blamed_ms"]) for pair in pairs])
        one.set_title(f"{title}\nmedian error {100 * data['error_median']:.1f} %", fontsize=9)
    axes[0].set_ylabel("blamed, ms")
    return figure


def _diagonal(axes: Axes, points: list[tuple[float, float]]) -> None:
    """Log scales, so a value that is not above 0 has no place here; the band is a fifth off."""
    shown = [(true, blamed) for true, blamed in points if true > 0 and blamed > 0]
    ends = (min(min(pair) for pair in shown) / 1.5, max(max(pair) for pair in shown) * 1.5)
    axes.fill_between(ends, [0.8 * end for end in ends], [1.2 * end for end in ends], color=SKY,
                      alpha=0.3, linewidth=0, label="within 20 %")  # fmt: skip
    axes.plot(ends, ends, color=GREY, lw=0.8)
    true_ms, blamed_ms = zip(*shown, strict=True)
    axes.plot(true_ms, blamed_ms, "o", color=BLUE, ms=4, alpha=0.8, 
              label=f"{len(shown)} faults")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        at(axis, (1, 10, 100, 1000, 10000))
    axes.set_xlabel("true, ms")
    axes.legend()


def replay_fidelity(data: dict[str, Any]) -> Figure:
    """Errors of the predictions, with the target of each as a band."""
    aims: dict[tuple[str, str], float] = {}
    for figure in data["figures"]:
        name: str = figure["name"]
        if name.endswith(" error"):
            _, load, *words, _ = name.split()
            aims[load.rstrip(":"), " ".join(words)] = 100 * float(figure["limit"].split()[1])
    drawn, axes = panels(3, 9.0, 2.6, sharex=True, sharey=True)
    for one, (load, found) in zip(axes, data["loads"].items(), strict=True):
        for place, measure in enumerate(_MEASURES):
            aim = aims.get((load, measure))
            if aim is not None:
                one.barh(place, 2 * aim, 0.7, -aim, color=ORANGE, alpha=0.25)
            error = found["quantiles"][f"{measure}_ms"]["error"]
            one.plot(100 * error, place, "o", color=BLUE, ms=5)
        one.axvline(0, color=GREY, lw=0.8)
        one.set_title(f"{load} of capacity, {found['requests']} requests")
        one.set_xlabel("error, %; band: aim")
        one.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(_MEASURES)), [name.upper()[:-3] + name[-3:] for name in _MEASURES])
    axes[0].invert_yaxis()
    return drawn


def sensitivity(data: dict[str, Any]) -> Figure:
    """The numbers on which most answers hang: answers that differ, and right ones lost."""
    rows = [row for row in data["rows"] if any(one["effects"] for one in row["changed"])][:10]
    figure, (axes,) = panels(1, 7.2, 4.2)
    lost_label: str | None = "right answers lost"
    for place, row in enumerate(rows):
        for one in row["changed"]:
            effects = one["effects"].values()
            smaller = one["factor"] < 1
            at_y = place + (-0.19 if smaller else 0.19)
            differ = sum(effect.get("differ", 0) for effect in effects)
            lost = sum(effect.get("lost", 0) for effect in effects)
            label = None if place else f"x {one['factor']:g}: answers that differ"
            axes.barh(at_y, differ, 0.36, color=SKY if smaller else BLUE, label=label)
            axes.plot([lost], [at_y], "|", color=RED, ms=11, mew=2, label=lost_label)
            lost_label = None
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.invert_yaxis()
    cases = sum(count for _, count, _ in data["plain"].values())
    axes.set_xlabel(f"answers, of {cases}")
    axes.set_title("The ten numbers on which most answers hang")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")
    return figure


PLOTS = (
    Plot("diagnosis", ("diagnosis/compare.json",), diagnosis),
    Plot("time_to_name", ("diagnosis/judged.json",), time_to_name),
    Plot("blame", ("diagnosis/attribution.json", "diagnosis/twin_attribution.json"), blame),
    Plot("sensitivity", ("diagnosis/sensitivity.json",), sensitivity),
    Plot("replay_fidelity", ("replay_fidelity.json",), replay_fidelity),
)
