"""The default setting beside fixed budgets and other servers."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.default_settings.acceptance import FIXED, ITL_LIMIT_MS, Results
from benchmarks.default_settings.plan import DEFAULT, OLD, goodput_load
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
)

_PEERS = {"vllm": ("vLLM", RED), "openvino": ("OpenVINO GenAI", GREEN)}
_FIXED = {"64": SKY, "256": PINK}  # grey for any other budget


def _points(results: Results, servers: list[str]) -> list[tuple[float, float, str]]:
    """TTFT in s, ITL p99 in ms, and the budget."""
    found = []
    for server in servers:
        wait_ms, tail_ms = (
            results.median("mix", server, figure) for figure in ("ttft_p50_ms", "itl_p99_ms")
        )
        if wait_ms is not None and tail_ms is not None:
            found.append((wait_ms / 1e3, tail_ms, server.partition("@")[2]))
    return found


def mix(data: dict[str, Any]) -> Figure:
    """Down and to the left is better."""
    results = Results(data)
    figure, (axes,) = panels(1, 7.2, 4.4)
    servers = results.servers("mix")
    fixed = [server for server in servers if server.startswith(FIXED)]
    _line(axes, _points(results, fixed), "phasescope, fixed budgets", GREY)
    for name, (title, colour) in _PEERS.items():
        _line(
            axes, _points(results, [s for s in servers if s.split("@")[0] == name]), title, colour
        )
    for wait_s, tail_ms, _ in _points(results, [DEFAULT]):
        axes.plot(wait_s, tail_ms, "*", color=BLUE, ms=15, label="phasescope, the default")
    axes.axhline(ITL_LIMIT_MS, color=BLACK, lw=0.8, ls="--")
    axes.set_yscale("log")
    at(axes.yaxis, (50, 100, 200, 500, 1000, 2000, 5000))
    axes.set_xlabel("TTFT p50 of a 1,500-token prompt, s")
    axes.set_ylabel("ITL p99 of six streams, ms (dashed: the limit)")
    axes.set_title("Six streams beside long prompts; numbers are token budgets")
    axes.legend()
    return figure


def _line(axes: Axes, points: list[tuple[float, float, str]], name: str, colour: str) -> None:
    if not points:
        return
    points.sort(key=lambda point: int(point[2] or 1 << 20))  # a peer's own default is large
    waits_s, tails_ms, budgets = zip(*points, strict=True)
    axes.plot(waits_s, tails_ms, "o-", color=colour, label=name)
    for wait_s, tail_ms, budget in zip(waits_s, tails_ms, budgets, strict=True):
        axes.annotate(budget or "default", (wait_s, tail_ms), (6, 3), textcoords="offset points")


def goodput(data: dict[str, Any]) -> Figure:
    results = Results(data)
    loads = [load.split()[1:] for load in results.loads() if load.startswith("goodput")]
    names = list(dict.fromkeys(name for name, _ in loads))
    figure, axes = panels(len(names), 4.4 * len(names), 3.4, sharey=True)
    for one, name in zip(axes, names, strict=True):
        shares = sorted(float(share) for other, share in loads if other == name)
        servers = dict.fromkeys(s for x in shares for s in results.servers(goodput_load(name, x)))
        for server in servers:
            _curve(one, results, name, shares, server)
        at(one.xaxis, shares)
        one.set_ylim(0, 1.03)
        one.set_xlabel("load, share of capacity")
        one.set_title(f"{name} lengths")
    axes[0].set_ylabel("share of requests that are good")
    axes[0].legend()
    return figure


def _curve(axes: Axes, results: Results, name: str, shares: list[float], server: str) -> None:
    found = []
    for share in shares:
        load = goodput_load(name, share)
        good = results.share(load, server, "good", results.rows(load, server))
        if good is not None:
            found.append((share, good))
    if not found:
        return
    peer, _, budget = server.partition("@")
    title, colour = _PEERS.get(peer, (f"fixed, {budget}", _FIXED.get(budget, GREY)))
    if peer in _PEERS and budget:
        title += f", {budget}"
    title, colour = {DEFAULT: ("default", BLUE), OLD: ("old default", ORANGE)}.get(
        server, (title, colour)
    )
    width, style = (2.2, "o-") if server == DEFAULT else (1.2, "o--")
    axes.plot(*zip(*found, strict=True), style, color=colour, lw=width, ms=4, label=title)


PLOTS = (
    Plot("default_settings_mix", ("default_settings.json",), mix),
    Plot("default_settings_goodput", ("default_settings.json",), goodput),
)
