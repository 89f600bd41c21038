"""Speed: beside other servers, under a mix with long prompts, and as batch and context grow."""

from __future__ import annotations

import statistics
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.table import sound
from benchmarks.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    Plot,
    at,
    panels,
)  # fmt: skip

_COLOURS = {
    "phasescope": BLUE, "vllm": RED, "openvino": GREEN, "llama.cpp": ORANGE, "transformers": PINK,
}  # fmt: skip
_NAMES = {"vllm": "vLLM", "openvino": "OpenVINO GenAI"}
_CLOSED = ("c1", "c8", "c16")


def _family(server: str) -> str:
    """llama.cpp-Q8_0@256 is llama.cpp."""
    return next(name for name in _COLOURS if server.startswith(name))


def _label(server: str) -> str:
    family = _family(server)
    return _NAMES.get(family, family) + server[len(family) :].replace("-", " ")


def _values(data: dict[str, Any], group: str, load: str, server: str, figure: str) -> list[float]:
    """One for each repetition that counts."""
    return [
        cell["figures"][figure]
        for cell in data["cells"]
        if (cell["group"], cell["load"], cell["server"]) == (group, load, server) and sound(cell)
    ]


def peers(data: dict[str, Any]) -> Figure:
    figure, axes = panels(2, 8.2, 6.0, rows=2)
    for row, group in enumerate(("bf16", "int8")):
        servers = list(dict.fromkeys(c["server"] for c in data["cells"] if c["group"] == group))
        servers.sort(key=lambda server: not server.startswith("phasescope"))
        _bars(axes[2 * row], data, group, servers, "tokens_per_s")
        _bars(axes[2 * row + 1], data, group, servers, "itl_p50_ms")
        axes[2 * row].set_title(f"{group} weights: throughput, tokens/s (more is better)")
        axes[2 * row + 1].set_title(f"{group} weights: ITL p50, ms (less is better)")
        axes[2 * row + 1].legend(loc="upper left")
    return figure


def _bars(axes: Axes, data: dict[str, Any], group: str, servers: list[str], figure: str) -> None:
    """Medians of the repetitions, with their range."""
    width = 0.8 / len(servers)
    shades: dict[str, int] = {}
    for number, server in enumerate(servers):
        family = _family(server)
        shade = shades.setdefault(family, 0)
        shades[family] += 1
        found = [_values(data, group, load, server, figure) for load in _CLOSED]
        middles = [statistics.median(values) for values in found]
        lows = [middle - min(values) for middle, values in zip(middles, found, strict=True)]
        highs = [max(values) - middle for middle, values in zip(middles, found, strict=True)]
        places = [place + (number - (len(servers) - 1) / 2) * width for place in range(3)]
        axes.bar(
            places, middles, 0.9 * width, yerr=(lows, highs), label=_label(server),
            color=_COLOURS[family], alpha=(1, 0.6)[shade],
            error_kw={"elinewidth": 0.8, "ecolor": BLACK},
        )  # fmt: skip
    axes.set_xticks(range(3), ["1 client", "8 clients", "16 clients"])
    axes.grid(visible=False, axis="x")


def peers_mix(data: dict[str, Any]) -> Figure:
    """The streams' tail against the long prompt's wait: down and to the left is better."""
    figure, (axes,) = panels(1, 7.2, 4.4)
    servers = list(dict.fromkeys(cell["server"] for cell in data["cells"]))
    by_family: dict[str, list[tuple[float, float, int | str]]] = {}
    for server in servers:
        waits = _values(data, "bf16", "mix", server, "ttft_p50_ms")
        tails = _values(data, "bf16", "mix", server, "itl_p99_ms")
        budget = data["servers"][server]["budget_tokens"]
        point = (statistics.median(waits) / 1e3, statistics.median(tails), budget)
        by_family.setdefault(_family(server), []).append(point)
    for family, points in by_family.items():
        points.sort(key=lambda point: point[2] if isinstance(point[2], int) else 0)
        waits_s, tails_ms, budgets = zip(*points, strict=True)
        axes.plot(waits_s, tails_ms, "o-", color=_COLOURS[family], label=_NAMES.get(family, family))
        for wait_s, tail_ms, budget in zip(waits_s, tails_ms, budgets, strict=True):
            axes.annotate(str(budget), (wait_s, tail_ms), (6, 3), textcoords="offset points")
    axes.set_yscale("log")
    at(axes.yaxis, (200, 500, 1000, 2000, 5000))
    axes.set_xlabel("TTFT p50 of a 1,500-token prompt, s")
    axes.set_ylabel("ITL p99 of six streams, ms")
    axes.set_title("Six streams beside long prompts; numbers are token budgets")
    axes.legend(loc="upper right", bbox_to_anchor=(0.62, 1))
    return figure


def scaling(bf16: dict[str, Any], int8: dict[str, Any]) -> Figure:
    tables = {
        "batch": "ITL by batch (context 256)",
        "context": "ITL of one stream by context",
        "chunk": "prefill by prompt tokens",
    }
    figure, axes = panels(3, 9.6, 3.6)
    for one, (table, title) in zip(axes, tables.items(), strict=True):
        for data, name, colour in ((bf16, "bf16", BLUE), (int8, "int8", ORANGE)):
            points = [point for point in data["points"] if point["table"] == table]
            sizes = [point["size"] for point in points]
            spreads = [point["spread_s"] for point in points]
            one.plot(sizes, [1e3 * s["median"] for s in spreads], "o-", ms=3.5, color=colour,
                     label=f"{name}, measured")  # fmt: skip
            one.fill_between(
                sizes, [1e3 * s["min"] for s in spreads], [1e3 * s["max"] for s in spreads],
                color=colour, alpha=0.2, linewidth=0,
            )  # fmt: skip
            floors = [point["floor_ms"] for point in points]
            one.plot(sizes, floors, "--", color=colour, lw=0.9, label=f"{name}, physical limit")
        one.set_xscale("log", base=2)
        one.set_yscale("log")
        at(one.xaxis, sizes[::2])
        at(one.yaxis, (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000))
        one.set_title(title)
        one.set_ylabel("ms")
    axes[0].legend()
    return figure


def _of(name: str) -> str:
    """Whose format it is: our decoder's have no name before them."""
    return name if name.startswith("torch") else f"native, {name}"


def quality(data: dict[str, Any]) -> Figure:
    loads = list(dict.fromkeys(row["load"] for row in data["speed"]))
    names = list(dict.fromkeys(row["name"] for row in data["speed"]))
    colours = dict(zip(names, (GREY, "#cccccc", BLUE, SKY, ORANGE, GREEN), strict=True))
    figure, (axes,) = panels(1, 7.6, 3.8)
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        middles = [
            statistics.median(
                row["tokens_per_s"]
                for row in data["speed"]
                if (row["name"], row["load"]) == (name, load)
            )
            for load in loads
        ]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(loads))]
        axes.bar(places, middles, 0.9 * width, color=colours[name], label=_of(name))
    axes.set_xticks(range(len(loads)), loads)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("tokens/s of the executor alone")
    axes.set_title("Formats of weights and KV cache: medians of 5 interleaved rounds")
    axes.legend()
    return figure


PLOTS = (
    Plot("peers", ("peers.json",), peers),
    Plot("peers_mix", ("peers_mix.json",), peers_mix),
    Plot("scaling", ("scaling.json", "scaling_int8.json"), scaling),
    Plot("quality", ("quality.json",), quality),
)
