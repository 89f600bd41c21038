"""What telemetry costs: with everything on, and in a gateway of 256 streams before and after."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, Plot, panels

_FIGURES = {"throughput": "throughput", "itl_p50": "ITL p50", "itl_p99": "ITL p99"}
_THREADS = {"pump": BLUE, "loop": ORANGE, "otlp": GREEN, "python": PINK, "uvloop": SKY}


def overhead(data: dict[str, Any]) -> Figure:
    """Costs with their 95 % intervals; the first row is off against off."""
    figure, axes = panels(3, 8.6, 2.6, sharex=True, sharey=True)
    names = list(data["costs"])
    for one, (key, title) in zip(axes, _FIGURES.items(), strict=True):
        for place, name in enumerate(names):
            cost = data["costs"][name][key]
            colour = GREY if name == "control" else BLUE
            one.plot((cost["low"], cost["high"]), (place, place), "-", color=colour, lw=2)
            one.plot(cost["percent"], place, "o", color=colour, ms=5)
        one.axvline(0, color=GREY, lw=0.8)
        one.axvline(1, color=RED, lw=0.8, ls="--")
        one.set_title(title)
        one.set_xlabel("cost, % (limit 1)")
        one.grid(visible=False, axis="y")
    labels = ["off against off" if name == "control" else f"receiver {name}" for name in names]
    axes[0].set_yticks(range(len(names)), labels)
    axes[0].invert_yaxis()
    return figure


def gateway_scale(data: dict[str, Any]) -> Figure:
    figure, axes = panels(3, 10, 2.7, width_ratios=(2, 1, 1.2))
    runs = ("before", "after")
    _threads(axes[0], [data[run]["gateway_cpu_us_per_token"] for run in runs])
    _pair(axes[1], [data[run]["loop_lag_ms"]["p99"] for run in runs], 10)
    axes[1].set_title("loop lag p99, ms")
    for run, colour in (("before", GREY), ("after", BLUE), ("now", GREEN)):
        minutes = [row[0] / 60 for row in data[run]["rss_mib"]]
        axes[2].plot(minutes, [row[1] for row in data[run]["rss_mib"]], color=colour, label=run)
    axes[2].set_title("memory, MiB")
    axes[2].set_xlabel("minutes")
    axes[2].set_ylim(bottom=0)
    axes[2].legend()
    for one in axes[:2]:
        one.set_yticks((0, 1), runs)
        one.invert_yaxis()
        one.grid(visible=False, axis="y")
    return figure


def _threads(axes: Axes, costs: list[dict[str, float]]) -> None:
    """Stacked by thread; what is left of the sum is the others'."""
    for place, cost in enumerate(costs):
        begin = 0.0
        parts = {
            name: sum(us for thread, us in cost.items() if thread.startswith(name))
            for name in _THREADS
        }
        parts["others"] = max(0.0, cost["all"] - sum(parts.values()))
        for name, us in parts.items():
            label = name if place == 0 else None
            axes.barh(place, us, 0.6, begin, color=_THREADS.get(name, GREY), label=label)
            begin += us
        axes.annotate(f"{cost['all']:.0f}", (begin, place), (3, 0), textcoords="offset points",
                      va="center")  # fmt: skip
    axes.set_title("CPU of the gateway, us a token, by thread")
    axes.margins(x=0.12)
    axes.legend(ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.14),
                columnspacing=1, handlelength=1)  # fmt: skip


def _pair(axes: Axes, values: list[float], limit: float) -> None:
    axes.barh((0, 1), values, 0.6, color=(GREY, BLUE))
    for place, value in enumerate(values):
        axes.annotate(f"{value:.1f}", (value, place), (3, 0), textcoords="offset points",
                      va="center")  # fmt: skip
    axes.axvline(limit, color=RED, lw=0.8, ls="--")
    axes.margins(x=0.25)


PLOTS = (
    Plot("overhead", ("overhead.json",), overhead),
    Plot("gateway_scale", ("gateway_scale.json",), gateway_scale),
)
