"""Panels: pure functions from a Snapshot to a renderable. They compute layout only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dashboards.monitor.fleet_faults import fault_line
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.limits import LimitValue
from telemetry.numbers.quantiles import Percentiles
from telemetry.stats.slo_report import SloStatus
from telemetry.stats.snapshot import Cell, GridRow, Snapshot

MEASURES = ("queue", "prefill", "ttft", "itl", "tpot", "e2e")

_COUNT_WIDTH = 56

_CELL_STYLE = {
    Cell.PREFILL.value: ("P", "black on yellow"),
    Cell.DECODE.value: ("█", "green"),
    Cell.WAIT.value: ("·", "red"),
    Cell.PREEMPTED.value: ("x", "white on red"),
    Cell.NONE.value: (" ", ""),
}


def header(snapshot: Snapshot, url: str, note: str | None = None) -> Text:
    """The server, its state, and the model."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(" phasescope ", style="bold reverse")
    line.append(f" {url} ")
    if note is not None:
        line.append(note, style="bold red")
    elif snapshot.ready:
        line.append("ready", style="bold green")
    else:
        line.append("not ready", style="bold red")
    line.append(f"  {snapshot.model or 'no engine'}")
    coverage = snapshot.coverage
    if coverage.is_attached:
        line.append(f" in {coverage.engine} {coverage.engine_version}", style="bold")
    if snapshot.backend:
        line.append(f" on {snapshot.backend}", style="dim")
    if snapshot.engine_restarts:
        line.append(f"  {snapshot.engine_restarts} engine restarts", style="red")
    return line


def load(snapshot: Snapshot, width: int) -> Panel:
    """Running, waiting, cache and rates."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(justify="right", style="dim")
    rows.add_column()
    slots = f" of {snapshot.max_seqs}" if snapshot.max_seqs is not None else ""
    rows.add_row("running", f"{snapshot.running}{slots}")
    rows.add_row("waiting", f"{snapshot.waiting} ({snapshot.waiting_tokens} tokens)")
    adapters = snapshot.adapters
    if adapters.max_placed:
        rows.add_row("adapters", f"{adapters.placed} placed of {len(adapters.names)}")
    rows.add_row("KV", kv_bar(snapshot, max(8, width - 34)))
    rows.add_row("prompt", f"{snapshot.prompt_tokens_per_s:.1f} tokens/s")
    rows.add_row("output", f"{snapshot.output_tokens_per_s:.1f} tokens/s")
    rows.add_row("requests", f"{snapshot.requests_per_s:.2f} /s")
    rows.add_row("step p50", milliseconds(snapshot.step_ns_p50))
    rows.add_row("budget", budget(snapshot))
    rows.add_row("preempted", str(snapshot.preemptions_total))
    rows.add_row("prefix", prefix_hits(snapshot))
    return Panel(rows, title="load", title_align="left", width=width)


def budget(snapshot: Snapshot) -> str:
    """The tokens that a step may compute; an automatic budget with those of the last step."""
    if not snapshot.auto_budget:
        most = snapshot.budget_tokens
        return "no engine" if most is None else f"{most} tokens a step"
    if snapshot.step_tokens is None:
        return "auto"
    line = f"auto, last {snapshot.step_tokens} of {snapshot.step_budget_tokens}"
    target_ns = snapshot.step_target_ns
    return line if target_ns is None else f"{line} in {milliseconds(target_ns)}"


def prefix_hits(snapshot: Snapshot) -> str:
    """Share of admitted tokens that were cached, and what a larger cache would add."""
    totals = snapshot.totals
    if not totals.admitted_tokens:
        return "no lookups"
    hit = 100 * totals.prefix_hit_tokens / totals.admitted_tokens
    ghost = 100 * totals.ghost_hit_tokens / totals.admitted_tokens
    return f"{hit:.0f} % cached" + (f", +{ghost:.0f} % if larger" if ghost >= 1 else "")


def kv_bar(snapshot: Snapshot, width: int) -> Text:
    """Used, cached and free blocks as a bar."""
    total = snapshot.blocks_total
    bar = Text()
    if not total:
        return Text("no cache")
    used = round(width * snapshot.blocks_used / total)
    cached = round(width * snapshot.blocks_cached / total)
    bar.append("█" * used, style="cyan")
    bar.append("▒" * cached, style="blue")
    bar.append("─" * max(0, width - used - cached), style="dim")
    bar.append(f" {snapshot.blocks_used}/{total}")
    return bar


def latencies(percentiles: Mapping[str, Percentiles], width: int) -> Panel:
    """Percentiles of the last minute, by measure."""
    table = Table(box=None, padding=(0, 1), expand=True)
    with_count = width >= _COUNT_WIDTH
    table.add_column("last 60 s" if with_count else "60 s", style="dim")
    for name in ("count", "p50", "p95", "p99", "max")[0 if with_count else 1 :]:
        table.add_column(name, justify="right", no_wrap=True)
    for measure in MEASURES:
        found = percentiles.get(measure)
        if found is None:
            continue
        values = (found.p50_ns, found.p95_ns, found.p99_ns, found.max_ns)
        count = (str(found.count),) if with_count else ()
        table.add_row(measure, *count, *(milliseconds(value) for value in values))
    return Panel(table, title="latency", title_align="left", width=width)


def grid(snapshot: Snapshot, width: int, height: int) -> Panel:
    """Rows are sequences, columns the last steps."""
    columns = max(1, width - 32)
    visible = snapshot.grid[: max(1, height - 3)]
    lines: list[RenderableType] = [_grid_line(row, columns) for row in visible]
    if not lines:
        lines.append(Text("no step yet", style="dim"))
    steps = snapshot.grid_step_ids
    span = f"steps {steps[0]}-{steps[1]}" if steps else "steps"
    legend = f"{span}: P prefill, █ decode, · wait, x preempted"
    return Panel(
        Group(*lines), title="batch", subtitle=legend, title_align="left", width=width,
        height=height,
    )  # fmt: skip


def _grid_line(row: GridRow, columns: int) -> Text:
    line = Text(no_wrap=True)
    line.append(f"{row.request_id or row.seq_id!s:<12.12}", style="bold")
    line.append(f" {row.prompt_tokens:>5}+{row.output_tokens:<5} ", style="dim")
    for cell in row.cells[-columns:]:
        symbol, style = _CELL_STYLE[cell]
        line.append(symbol, style=style)
    return line


def goodput(classes: Iterable[SloStatus]) -> Text:
    """The share of requests that met the SLO and the burn rate, of each class with requests."""
    line = Text(" goodput", style="dim", no_wrap=True, overflow="ellipsis")
    shown = False
    for status in classes:
        window = status.windows[0]
        if window.burn is None:
            continue
        shown = True
        share = 100 * window.good / window.attempted
        style = "red" if window.burn > 1 else "green"
        line.append(f"  {status.name} {share:.1f} % good, burn {window.burn:.1f}", style=style)
    if not shown:
        line.append("  no request in the last minute")
    return line


def promises(diagnosis: Diagnosis) -> Text:
    """The classes that miss their SLO, what they miss, and in which form."""
    line = Text(" promises", style="dim", no_wrap=True, overflow="ellipsis")
    for finding in diagnosis.findings:
        for one in finding.promises:
            line.append(f"  {one.slo_class} {one.form.value}", style="bold red")
            line.append(f" {one.missed} of {one.requests} missed", style="red")
            if one.setting:
                line.append(f", {one.setting} binds", style="yellow")
    return line


def limits(snapshot: Snapshot) -> Text:
    """The limits that are not what they were at the start."""
    line = Text(" limits", style="dim", no_wrap=True, overflow="ellipsis")
    for name, changed in snapshot.limits_changed.items():
        line.append(f"  {name} {limit_text(changed.value)}", style="yellow")
        line.append(f" (started with {limit_text(changed.at_start)})", style="dim")
    return line


def autopilot(snapshot: Snapshot) -> Text:
    """What the autopilot does, and what it decided last."""
    line = Text(" autopilot", style="dim", no_wrap=True, overflow="ellipsis")
    found = snapshot.autopilot
    if found is None or found.at_ns is None:
        return line
    line.append(f"  {found.mode}, {found.state.replace('_', ' ')}")
    named = ", ".join(f"{name} {limit_text(value)}" for name, value in found.limits.items())
    ago_s = max(0, snapshot.at_ns - found.at_ns) / 1e9
    style = "yellow" if found.decision in ("proposed", "applied", "upheld") else ""
    line.append(f"  {(found.decision or '').replace('_', ' ')} {named}", style=style)
    line.append(f" {ago_s:.0f} s ago: {found.why}", style="dim")
    return line


def limit_text(value: LimitValue) -> str:
    """A limit as it is given on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ",".join(f"{name}:{weight:g}" for name, weight in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def findings(diagnosis: Diagnosis | None, width: int) -> Panel:
    """The diagnosis in a few lines."""
    text = Text()
    if diagnosis is None:
        text.append("no diagnosis", style="dim")
    elif not diagnosis.findings and diagnosis.healthy:
        text.append("healthy", style="green")
    for finding in diagnosis.findings if diagnosis else ():
        text.append(f"{finding.symptom.value} ", style="bold red")
        text.append(f"({finding.confidence:.2f}) {finding.claim}; see {finding.runbook}\n")
        if finding.chain:
            text.append(f"  {finding.chain_text}\n")
        if finding.limits:
            text.append(f"  {', '.join(one.text for one in finding.limits)}\n")
    for fault in diagnosis.fleet.faults if diagnosis and diagnosis.fleet else ():
        text.append(f"{fault.symptom.value} ", style="bold red")
        text.append(f"{fault_line(fault)}\n")
    if diagnosis is not None and diagnosis.abstained:
        names = ", ".join(one.symptom.value for one in diagnosis.abstained)
        text.append(f"\nnot judged on {diagnosis.engine}: {names}", style="dim")
    text.rstrip()
    return Panel(text, title="diagnosis", title_align="left", width=width)


def footer(snapshot: Snapshot) -> Text:
    """Requests by outcome, and whether the telemetry is complete."""
    done = " ".join(f"{name} {count}" for name, count in snapshot.requests_total.items())
    line = Text(f" {done}  spans {snapshot.spans_exported}", style="dim")
    for name, count in (
        ("spans dropped", snapshot.spans_dropped),
        ("facts lost", snapshot.facts_lost),
    ):
        if count:
            line.append(f"  {count} {name}", style="red")
    share = snapshot.coverage.share
    if snapshot.coverage.is_attached and share is not None:
        line.append(f"  not observed {100 * share.p50:.1f} % (p99 {100 * share.p99:.1f} %)")
    for name in snapshot.folds_detached:
        line.append(f"  fold {name} is detached", style="bold red")
    gpu = (snapshot.gpu or {}).get("status")
    if gpu is not None:
        line.append(f"  GPU {gpu}")
    return line


def milliseconds(value_ns: int | None) -> str:
    """The time as text with three digits; a dash where nothing was measured."""
    if value_ns is None:
        return "-"
    value_ms = value_ns / 1e6
    if value_ms >= 10_000:
        return f"{value_ms / 1000:.1f} s"
    if value_ms >= 100:
        return f"{value_ms:.0f} ms"
    return f"{value_ms:.1f} ms" if value_ms >= 10 else f"{value_ms:.2f} ms"
