"""A result as tables for people: a pure function of what the JSON holds."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lab.load.plot import SHORT_WINDOW, knee_text
from lab.load.result import BenchResult, CacheState, ClassResult, Latency, Spread
from lab.load.sweep import Over, SweepResult

_MANY_TOKENS_A_CHUNK = 1.05
_LATE_MS = 5.0


def render(result: BenchResult) -> Group:
    """All tables of a run, and notes on them."""
    several = len(result.classes) > 1
    rows = (*result.classes, result.total) if several else result.classes
    parts: list[RenderableType] = [Text(line) for line in _head(result)]
    parts += [_load_table(rows), _latency_table(rows)]
    parts += [Text(line) for row in result.classes for line in _lengths_lines(row)]
    parts += [Text(line, style="yellow") for line in notes(result)]
    return Group(*parts)


def render_sweep(sweep: SweepResult) -> Group:
    """A row for each value, and the knee."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (
        "offered/s" if sweep.over is Over.RATE else "users", "requests", "failed", "SLO met",
        "goodput/s", "ended/s", "out tok/s", "good out tok/s", "TTFT p99", "ITL p99",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for cell in sweep.cells:
        one = cell.result.total
        table.add_row(
            f"{cell.value:g}", str(one.counted), str(one.counted - one.ok),
            "" if one.slo_attained is None else f"{100 * one.slo_attained:.1f} %",
            f"{one.goodput.requests_per_s:.2f}", f"{one.throughput.requests_per_s:.2f}",
            f"{one.throughput.output_tokens_per_s:.1f}", f"{one.goodput.output_tokens_per_s:.1f}",
            ms(one.ttft.p99_ms) if one.ttft else "", ms(one.itl.p99_ms) if one.itl else "",
            style=None if cell.kept else "dim",
        )  # fmt: skip
    short = any(cell.result.is_short for cell in sweep.cells)
    lines = [knee_text(sweep), *([SHORT_WINDOW] if short else [])]
    return Group(table, *map(Text, lines))


def ms(value: float) -> str:
    """Few digits: 0.42, 4.2, 42.0, 4200."""
    if value < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _head(result: BenchResult) -> Iterator[str]:
    server, machine = result.server, result.machine
    software = f" ({server.software})" if server.software else ""
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:g} GiB"
    yield f"server   {server.url} {server.model}{software}"
    yield f"client   {machine.cores} cores of {machine.cpu}{memory}, Python {machine.python}"
    warm = f" after {result.warmup_requests} warm-up requests" if result.warmup_requests else ""
    yield f"window   {result.window_s:.1f} s{warm}"
    for row in result.classes:
        targets = ", ".join(f"{name} {limit:g}" for name, limit in row.slo.items())
        yield f"load     {row.name}: {row.arrivals}, lengths {row.lengths}, SLO {targets or 'none'}"
    if result.partial:
        yield "PARTIAL  the run was interrupted; these are the figures up to then"


def _load_table(rows: tuple[ClassResult, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class")
    for name in (
        "ok", "failed", "offered/s", "ended/s", "goodput/s", "SLO met",
        "in tok/s", "out tok/s", "good out tok/s",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    table.add_column("cache")
    for row in rows:
        table.add_row(
            row.name,
            str(row.ok),
            str(row.counted - row.ok),
            "" if row.offered_per_s is None else f"{row.offered_per_s:.2f}",
            f"{row.throughput.requests_per_s:.2f}",
            f"{row.goodput.requests_per_s:.2f}",
            "" if row.slo_attained is None else f"{100 * row.slo_attained:.1f} %",
            f"{row.throughput.input_tokens_per_s:.1f}",
            f"{row.throughput.output_tokens_per_s:.1f}",
            f"{row.goodput.output_tokens_per_s:.1f}",
            _cache(row),
        )
    return table


def _cache(row: ClassResult) -> str:
    if row.cache is CacheState.WARM and row.cached_share is not None:
        return f"warm {100 * row.cached_share:.0f} %"
    return row.cache.value


def _latency_table(rows: tuple[ClassResult, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class")
    table.add_column("ms")
    for name in ("count", "mean", "p50", "p90", "p95", "p99", "max", "SLO"):
        table.add_column(name, justify="right")
    for row in rows:
        measures: tuple[tuple[str, Latency | None, str], ...] = (
            ("TTFT", row.ttft, "ttft_ms"),
            ("ITL", row.itl, "itl_ms"),
            ("TPOT", row.tpot, "tpot_ms"),
            ("E2E", row.e2e, "e2e_ms"),
            ("client late", row.lateness, ""),
        )
        name = row.name
        for label, latency, target in measures:
            if latency is None:
                continue
            limit = row.slo.get(target)
            table.add_row(
                name, label, str(latency.count), ms(latency.mean_ms), ms(latency.p50_ms),
                ms(latency.p90_ms), ms(latency.p95_ms), ms(latency.p99_ms), ms(latency.max_ms),
                "" if limit is None else f"{limit:g}",
            )  # fmt: skip
            name = ""
    return table


def _lengths_lines(row: ClassResult) -> Iterator[str]:
    for what, asked, seen in (
        ("prompt", row.prompt_asked, row.prompt_seen),
        ("output", row.output_asked, row.output_seen),
    ):
        if asked is not None:
            yield f"{row.name}: {what} tokens requested {_spread(asked)}, reported {_spread(seen)}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "nothing"
    if spread.min == spread.max:
        return f"{spread.min}"
    return f"{spread.min} to {spread.max} (mean {spread.mean:.1f}, p50 {spread.p50})"


def notes(result: BenchResult) -> list[str]:
    """What limits the meaning of the tables."""
    found = [
        f"{row.name}: {error.count} failed: {error.kind.value}"
        + (f" {error.status}" if error.status not in (None, 200) else "")
        + (f" ({error.example})" if error.example else "")
        for row in result.classes
        for error in row.errors
    ]
    if result.warmup_errors:
        found.append(f"{result.warmup_errors} warm-up requests failed; they are not counted")
    for row in result.classes:
        found += _class_notes(row)
    if not any(row.slo for row in result.classes):
        found.append("no SLO was given: goodput counts every whole reply (--slo, or per class)")
    if result.is_short:
        found.append(SHORT_WINDOW)
    if result.clipped:
        found.append(f"{result.clipped} requests were shortened to fit the model's context")
    found += [
        f"{row.name}: no request was counted: run longer, or with less warm-up"
        for row in result.classes
        if row.counted == 0
    ]
    return found


def _class_notes(row: ClassResult) -> Iterator[str]:
    per_chunk = row.chunk_tokens / row.chunks if row.chunks else 1.0
    if per_chunk > _MANY_TOKENS_A_CHUNK:
        yield f"{row.name}: {per_chunk:.2f} tokens a chunk: ITL is the gap between chunks"
    gaps = row.itl.count if row.itl else 0
    if gaps and row.gaps_together / gaps > 0.01:
        share = 100 * row.gaps_together / gaps
        yield f"{row.name}: {share:.1f} % of the chunks arrived together with the one before"
    if row.usage_missing:
        yield (
            f"{row.name}: {row.usage_missing} replies without usage: their chunks count as tokens"
        )
    if row.lateness is not None and row.lateness.p99_ms > _LATE_MS:
        yield (
            f"{row.name}: the client itself was up to {ms(row.lateness.max_ms)} ms late; "
            "latencies count from the intended times, so they include this"
        )
    asked, seen = row.output_asked, row.output_seen
    if asked and seen and seen.mean < 0.99 * asked.mean:
        yield (
            f"{row.name}: outputs are shorter than requested "
            f"({seen.mean:.1f} of {asked.mean:.1f} tokens): does the server support ignore_eos?"
        )
