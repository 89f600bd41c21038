"""From the cells of all rounds to the acceptance lines: limit, value, and whether it holds.

A ratio is the median of those within rounds. Shares of good requests and quantiles of few requests
are of all rounds together: a round has too few for its own. A quantile without enough values is not
measured: a p95 takes 20, a p99 100.

    python -m benchmarks.default_settings.acceptance [FILE]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.contract.common import Figure, above, at_least, at_most
from benchmarks.default_settings.loads import CLOSED
from benchmarks.default_settings.plan import DEFAULT, OLD, ONE_CLASS
from benchmarks.samples import known_quantile

RESULTS = Path(__file__).resolve().parents[1] / "results" / "default_settings.json"
FIXED = f"{DEFAULT}@"

ITL_LIMIT_MS = 120.0
TTFT_TO_BEST, TOKENS_TO_BEST, CLEARLY = 1.1, 0.95, 0.95
GOOD, TO_OLD, TO_FIXED = 0.95, 1.5, 0.97
SAME, TENANT_LIMIT, VOICE_LIMIT, BATCH_LIMIT = 0.02, 2.5, 0.95, 0.9

Rows = dict[int, dict[str, float]]
"""Figures of a server under one load by round; cells that do not count are left out."""


class Results:
    """What a file of results says."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._cells: list[dict[str, Any]] = data["cells"]

    def loads(self) -> list[str]:
        return list(dict.fromkeys(cell["load"] for cell in self._cells))

    def servers(self, load: str) -> list[str]:
        """The servers with a cell that counts."""
        found = dict.fromkeys(cell["server"] for cell in self._cells if cell["load"] == load)
        return [server for server in found if self.rows(load, server)]

    def rows(self, load: str, server: str) -> Rows:
        return {
            cell["repetition"]: cell["figures"]
            for cell in self._cells
            if (cell["load"], cell["server"]) == (load, server)
            and "figures" in cell
            and not cell["checks"]["problems"]
        }

    def values(self, load: str, server: str, figure: str) -> list[float]:
        rows = self.rows(load, server).values()
        return [row[figure] for row in rows if row.get(figure) is not None]

    def pooled(self, load: str, server: str, figure: str) -> list[float]:
        """All values of all rounds; a list in each cell, which files of before do not have."""
        return [
            value
            for cell in self._cells
            if (cell["load"], cell["server"]) == (load, server)
            and "figures" in cell
            and not cell["checks"]["problems"]
            for value in cell["figures"].get(figure, ())
        ]

    def median(self, load: str, server: str, figure: str) -> float | None:
        values = self.values(load, server, figure)
        return statistics.median(values) if values else None

    def ratio(self, load: str, server: str, other: str, figure: str) -> float | None:
        """`server` by `other`, round by round; the median."""
        ours, others = self.rows(load, server), self.rows(load, other)
        ratios = [
            row[figure] / others[number][figure]
            for number, row in ours.items()
            if number in others and row.get(figure) and others[number].get(figure)
        ]
        return statistics.median(ratios) if ratios else None

    def share(self, load: str, server: str, part: str, rounds: Iterable[int]) -> float | None:
        """`part` of all counted requests in these rounds."""
        rows = self.rows(load, server)
        chosen = [rows[number] for number in rounds if number in rows]
        counted = sum(row["counted"] for row in chosen)
        return sum(row[part] for row in chosen) / counted if counted else None


def figures(data: dict[str, Any]) -> list[Figure]:
    """A line for each demand on what was measured; loads that were not have none."""
    results = Results(data)
    found: list[Figure] = []
    for load in results.loads():
        if load == "mix":
            found += mix(results)
        elif load.startswith("goodput"):
            found += goodput(results, load)
        elif load in CLOSED:
            found += closed(results, load)
        elif load == "tenants":
            found.append(tenants(results))
        elif load == "voice":
            found += voice(results)
    return found + traces(data)


def best(results: Results, load: str, servers: list[str], figure: str, least: bool) -> str | None:
    """The server with the best median."""
    known = {
        server: value
        for server in servers
        if (value := results.median(load, server, figure)) is not None
    }
    return (min if least else max)(known, key=known.__getitem__) if known else None


def mix(results: Results) -> list[Figure]:
    servers = [server for server in results.servers("mix") if server != DEFAULT]
    fixed = [server for server in servers if server.startswith(FIXED)]
    peers = [server for server in servers if not server.startswith(DEFAULT)]
    found = [
        at_most("mix: ITL p99, ms", results.median("mix", DEFAULT, "itl_p99_ms"), ITL_LIMIT_MS)
    ]
    quickest = best(results, "mix", fixed, "ttft_p50_ms", least=True)
    if quickest is not None:
        ratio = results.ratio("mix", DEFAULT, quickest, "ttft_p50_ms")
        found.append(at_most(f"mix: injected TTFT to that of {quickest}", ratio, TTFT_TO_BEST))
    most = best(results, "mix", fixed, "tokens_per_s", least=False)
    if most is not None:
        ratio = results.ratio("mix", DEFAULT, most, "tokens_per_s")
        found.append(at_least(f"mix: streams' tokens/s to those of {most}", ratio, TOKENS_TO_BEST))
    for peer in (peer for peer in peers if "@" not in peer):
        ratio = results.ratio("mix", DEFAULT, peer, "ttft_p50_ms")
        below = ratio is not None and ratio < 1
        found.append(Figure(f"mix: injected TTFT to that of {peer}", ratio, "< 1", below))
    if servers:
        ahead = [server for server in servers if is_clearly_ahead(results, server)]
        name = "mix: servers ahead of the default by more than 5 % in ITL p99 and in TTFT"
        found.append(at_most(name, float(len(ahead)), 0))
    return found


def is_clearly_ahead(results: Results, server: str) -> bool:
    """In the time between tokens as in the time to the first one."""
    ratios = [
        results.ratio("mix", server, DEFAULT, figure) for figure in ("itl_p99_ms", "ttft_p50_ms")
    ]
    return all(ratio is not None and ratio < CLEARLY for ratio in ratios)


def goodput(results: Results, load: str) -> list[Figure]:
    """Each comparison over the rounds that both have."""
    servers = [server for server in results.servers(load) if server != DEFAULT]
    rounds = results.rows(load, DEFAULT)
    pairs = {server: _shares(results, load, server, list(rounds)) for server in servers}
    found = []
    if OLD in pairs:
        ours, old = pairs[OLD]
        if old < GOOD:
            factor = ours / old if old else None
            line = at_least(f"{load}: good requests to {OLD}'s", factor, TO_OLD)
            if not old and ours:  # any share above none is more than every factor
                line = above(f"{load}: share of good requests, {OLD}'s is 0", ours, 0)
            found.append(line)
    fixed = {server: pair for server, pair in pairs.items() if server.startswith(FIXED)}
    if fixed:
        server = max(fixed, key=lambda one: fixed[one][1])
        ours, other = fixed[server]
        found.append(
            at_least(
                f"{load}: share of good requests, {server} has {other:.3f}", ours, TO_FIXED * other
            )
        )
    peers = {server: pair for server, pair in pairs.items() if not server.startswith(DEFAULT)}
    if peers:
        server = max(peers, key=lambda one: peers[one][1])
        ours, other = peers[server]
        name = f"{load}: share of good requests, {server} has {other:.3f}"
        best_there_is = ours == 1.0
        found.append(Figure(name, ours, f"> {other:.3f}, or 1", ours > other or best_there_is))
    return found


def _shares(results: Results, load: str, server: str, rounds: list[int]) -> tuple[float, float]:
    """The good shares of the default and of another server, over the rounds of both."""
    common = [number for number in rounds if number in results.rows(load, server)]
    ours, other = (results.share(load, one, "good", common) for one in (DEFAULT, server))
    return ours or 0.0, other or 0.0


def closed(results: Results, load: str) -> list[Figure]:
    """Not worse than the old default."""
    found = []
    if load != "pf":  # eight tokens are no throughput
        rate = results.ratio(load, DEFAULT, OLD, "tokens_per_s")
        found.append(at_least(f"{load}: tokens/s to the old default's", rate, 1 - SAME))
    wait = results.ratio(load, DEFAULT, OLD, "ttft_p50_ms")
    found.append(at_most(f"{load}: TTFT p50 to the old default's", wait, 1 + SAME))
    return found


def tenants(results: Results) -> Figure:
    return at_most(
        "tenants: TTFT p95 of B beside A's flood to alone", tenant_ratio(results, DEFAULT),
        TENANT_LIMIT,
    )  # fmt: skip


def tenant_ratio(results: Results, server: str) -> float | None:
    """The ratio of the p95 of all rounds; None of too few requests."""
    beside, alone = (
        known_quantile(results.pooled("tenants", server, figure), 0.95)
        for figure in ("ttft_ms", "alone_ttft_ms")
    )
    return None if beside is None or not alone else beside / alone


def traces(data: dict[str, Any]) -> list[Figure]:
    """Replies of ours whose own trace was not exported; files of before only counted traces."""
    missing = [one["missing"] for one in data.get("traces", {}).values() if "missing" in one]
    name = "replies of ours without their trace"
    return [at_most(name, float(sum(missing)), 0)] if missing else []


def voice(results: Results) -> list[Figure]:
    rounds = list(results.rows("voice", DEFAULT))
    in_time = results.share("voice", DEFAULT, "in_time", rounds)
    batch = results.ratio("voice", DEFAULT, ONE_CLASS, "batch_tokens_per_s")
    return [
        at_least("voice: share of first tokens in time", in_time, VOICE_LIMIT),
        at_least("voice: batch tokens/s to those without classes", batch, BATCH_LIMIT),
    ]


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    found = figures(json.loads(path.read_text()))
    for figure in found:
        print(figure.line())
    return 0 if all(figure.holds for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
