"""The tables that a run prints: points beside their limits, memory held, and end to end."""

from __future__ import annotations

import statistics

from benchmarks.calibration import Limits
from benchmarks.scaling.http import HttpPoint
from benchmarks.scaling.points import BATCH_CONTEXT_TOKENS, Held, Point

TITLES = {
    "batch": f"ITL against batch (contexts of {BATCH_CONTEXT_TOKENS})",
    "context": "ITL against context (one sequence)",
    "chunk": "Prefill time against chunk length (one sequence, from its beginning)",
}


def point_tables(points: list[Point], limits: Limits, peak: list[float]) -> str:
    lines: list[str] = []
    for name, title in TITLES.items():
        lines += ["", f"{title}:", ""]
        lines.append(f"| {name} | ms (min to max) | tokens/s | memory share | matrix share "
                     "| limit ms | share of limit |")  # fmt: skip
        lines.append("|---|---|---|---|---|---|---|")
        for point in (p for p in points if p.table == name):
            shares = point.shares(limits, peak)
            median_s = statistics.median(point.seconds)
            tokens = 1 if name == "context" else point.size
            lines.append(
                f"| {point.size} | {1000 * median_s:.1f} ({1000 * min(point.seconds):.1f} to "
                f"{1000 * max(point.seconds):.1f}) | {tokens / median_s:.1f} "
                f"| {100 * shares['memory_share']:.0f} % | {100 * shares['matrix_share']:.0f} % "
                f"| {shares['floor_ms']:.2f} | {100 * shares['floor_share']:.0f} % |"
            )
    return "\n".join(lines)


def held_table(held: list[Held]) -> str:
    lines = [
        "", "Memory against tokens held (the cache is allocated at the start):", "",
        "| tokens | blocks | blocks MiB | least MiB | process MiB | grown MiB |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row.tokens} | {row.blocks} | {row.blocks * row.block_bytes / 2**20:.1f} "
        f"| {row.needed_bytes / 2**20:.1f} | {row.rss_bytes / 2**20:.0f} "
        f"| {(row.rss_bytes - held[0].rss_bytes) / 2**20:.1f} |"
        for row in held
    ]
    return "\n".join(lines)


def http_table(points: list[HttpPoint]) -> str:
    if not points:
        return ""
    lines = [
        "", "End to end over HTTP (128 tokens in, 48 out):", "",
        "| streams | ITL ms (min to max) | tokens/s | blocks used | needed | engine MiB |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for batch in dict.fromkeys(point.batch for point in points):
        mine = [point for point in points if point.batch == batch]
        itl = [point.itl_ms for point in mine]
        median_ms = statistics.median(itl)
        blocks = max((p.blocks_used for p in mine if p.blocks_used is not None), default=None)
        rss_mib = max((p.rss_mib for p in mine if p.rss_mib is not None), default=None)
        lines.append(
            f"| {batch} | {median_ms:.1f} ({min(itl):.1f} to {max(itl):.1f}) "
            f"| {1000 * batch / median_ms:.1f} | {'-' if blocks is None else blocks} "
            f"| {mine[0].blocks_needed} | {'-' if rss_mib is None else round(rss_mib)} |"
        )
    return "\n".join(lines)
