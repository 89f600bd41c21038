"""The comparison as Markdown: medians, their range, and how each server stands to the best peer.

python -m benchmarks.peers.table [FILE]
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.layout import HERE
from benchmarks.peers.recipes import OURS

Cell = dict[str, Any]

# figure, heading, whether more is better
_COLUMNS = {
    "closed": (
        ("tokens_per_s", "tokens/s", True),
        ("itl_p50_ms", "ITL p50 ms", False),
        ("itl_p99_ms", "ITL p99 ms", False),
        ("ttft_p50_ms", "TTFT p50 ms", False),
    ),
    "pf": (("ttft_p50_ms", "TTFT p50 ms", False),),
    "mix": (
        ("tokens_per_s", "streams' tokens/s", True),
        ("itl_p50_ms", "ITL p50 ms", False),
        ("itl_p99_ms", "ITL p99 ms", False),
        ("itl_max_ms", "ITL max ms", False),
        ("ttft_p50_ms", "injected TTFT p50 ms", False),
    ),
}
_NOTE = (
    "Median of the repetitions (smallest to largest); then, as a factor, how much better than the "
    "best peer of the same group, load and repetition: above 1 the row is ahead, whether more or "
    "less of the figure is better. The factor is the median of those of the repetitions."
)


def render(data: dict[str, Any]) -> str:
    """The whole page."""
    lines = [_NOTE, ""]
    lines += _machine(data)
    for group in dict.fromkeys(cell["group"] for cell in data["cells"]):
        mine = [cell for cell in data["cells"] if cell["group"] == group]
        for load in dict.fromkeys(cell["load"] for cell in mine):
            chosen = [cell for cell in mine if cell["load"] == load]
            lines += [f"### {group}, {load}", "", *_table(load, chosen), ""]
    lines += _against(data["cells"])
    lines += _servers(data)
    return "\n".join(lines) + "\n"


def advantage(cell: Cell, round_: list[Cell], figure: str, more_is_better: bool) -> float | None:
    """The cell's figure against the best peer's in the same round; None without either."""
    value = _value(cell, figure)
    peers = [_value(other, figure) for other in round_ if not other["server"].startswith(OURS)]
    known = [peer for peer in peers if peer]
    if not value or not known:
        return None
    return value / max(known) if more_is_better else min(known) / value


def _against(cells: list[Cell]) -> list[str]:
    """Ours at its default settings against each peer, by the first figure of the load."""
    rounds: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        rounds.setdefault((cell["group"], cell["load"]), []).append(cell)
    lines = ["### phasescope, at its default settings, against each", ""]
    lines += ["| weights | load | figure | server and factor |", "|---|---|---|---|"]
    for (group, load), mine in rounds.items():
        figure, heading, more_is_better = _COLUMNS.get(load, _COLUMNS["closed"])[0]
        ours = [c for c in mine if c["server"].startswith(OURS) and "@" not in c["server"]]
        peers = dict.fromkeys(c["server"] for c in mine if not c["server"].startswith(OURS))
        texts = [
            f"{peer} {statistics.median(factors):.2f}"
            for peer in peers
            if (factors := _factors(ours, mine, peer, figure, more_is_better))
        ]
        lines.append(f"| {group} | {load} | {heading} | {', '.join(texts)} |")
    return [*lines, ""]


def _factors(
    ours: list[Cell], cells: list[Cell], peer: str, figure: str, more_is_better: bool
) -> list[float]:
    """Our advantage in each repetition in which both were measured."""
    found: list[float] = []
    for cell in ours:
        same = [c for c in cells if (c["server"], c["repetition"]) == (peer, cell["repetition"])]
        factor = advantage(cell, same, figure, more_is_better)
        if factor is not None:
            found.append(factor)
    return found


def sound(cell: Cell) -> bool:
    """Whether the cell was measured and measures what it should."""
    return "figures" in cell and not cell["checks"]["problems"]


def _value(cell: Cell, figure: str) -> float | None:
    found: float | None = cell["figures"].get(figure) if sound(cell) else None
    return found


def _table(load: str, cells: list[Cell]) -> list[str]:
    columns = _COLUMNS.get(load, _COLUMNS["closed"])
    repetitions = {cell["repetition"] for cell in cells}
    rounds = {one: [cell for cell in cells if cell["repetition"] == one] for one in repetitions}
    lines = ["| server | " + " | ".join(heading for _, heading, _ in columns) + " | n |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    notes: list[str] = []
    for server in dict.fromkeys(cell["server"] for cell in cells):
        mine = [cell for cell in cells if cell["server"] == server]
        texts = [
            _text(mine, rounds, figure, more_is_better) for figure, _, more_is_better in columns
        ]
        good = sum(1 for cell in mine if sound(cell))
        lines.append(f"| {server} | " + " | ".join(texts) + f" | {good} of {len(mine)} |")
        notes += _notes(server, mine)
    return lines + (["", *notes] if notes else [])


def _text(
    cells: list[Cell], rounds: dict[int, list[Cell]], figure: str, more_is_better: bool
) -> str:
    values = [value for cell in cells if (value := _value(cell, figure)) is not None]
    if not values:
        return "-"
    factors = [
        factor
        for cell in cells
        if (factor := advantage(cell, rounds[cell["repetition"]], figure, more_is_better))
    ]
    text = f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
    return text + (f", x{statistics.median(factors):.2f}" if factors else "")


def _notes(server: str, cells: list[Cell]) -> list[str]:
    """Why cells do not count, each reason once."""
    reasons: dict[str, None] = {}
    for cell in cells:
        for reason in [cell["error"]] if "error" in cell else cell["checks"]["problems"]:
            reasons[reason] = None
    return [f"- {server} not counted: {reason}" for reason in list(reasons)[:3]]


def _machine(data: dict[str, Any]) -> list[str]:
    machine = data["about"]["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['instructions'])}), "
        f"{machine['memory_gib']} GiB; load average at the start {machine['load_average_1_min']}.",
        "",
    ]
    names = sorted({key for entry in data["calibrations"] for key in entry if "_s" in key})
    for name in names:
        values = [entry[name] for entry in data["calibrations"] if name in entry]
        lines.append(
            f"- {name}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g}), "
            f"{len(values)} times before and after repetitions"
        )
    return [*lines, ""] if names else lines


def _servers(data: dict[str, Any]) -> list[str]:
    lines = ["### Servers", "", "| server | version | precision | memory MiB | command |"]
    lines.append("|---|---|---|---|---|")
    for label, facts in data["servers"].items():
        lines.append(
            f"| {label} | {facts['version']} | {facts['precision']} | "
            f"{facts['resident_mib']:.0f} | `{facts['command']}` |"
        )
    return lines + [f"- {label} did not take part: {why}" for label, why in data["failed"].items()]


def main() -> int:
    default = HERE.parent / "results" / "peers.json"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    if not path.is_file():
        print(f"peers: {path} does not exist; run python -m benchmarks.peers first")
        return 1
    print(render(json.loads(path.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
