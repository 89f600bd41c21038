"""Panels of a fleet: pure functions to a renderable. They compute layout only."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dashboards.monitor.panels import milliseconds
from diagnosis.fleet.findings import FleetFinding
from diagnosis.fleet.judge import Scope
from diagnosis.fleet.view import FleetDiagnosis, ReplicaLine, ReplicaState

_STATE_STYLE = {
    ReplicaState.SERVING: "green",
    ReplicaState.IDLE: "dim",
    ReplicaState.NOT_READY: "bold red",
    ReplicaState.UNREAD: "bold red",
}
_SCOPE_STYLE = {Scope.HEALTHY: "green", Scope.NOT_ENOUGH: "yellow"}


def header(fleet: FleetDiagnosis) -> Text:
    """How many replicas are in which state."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(" phasescope ", style="bold reverse")
    line.append(f" {len(fleet.replicas)} replicas")
    for state in ReplicaState:
        count = sum(one.state is state for one in fleet.replicas)
        if count:
            line.append(f"  {count} {state.value}", style=_STATE_STYLE[state])
    return line


def verdict(fleet: FleetDiagnosis) -> Text:
    """What is said of the fleet, the verdict first."""
    style = _SCOPE_STYLE.get(fleet.verdict.scope, "bold red")
    text = Text(f" {fleet.said[0]}", style=style)
    for sentence in fleet.said[1:]:
        text.append(f"\n   {sentence}", style="")
    return text


def replicas(fleet: FleetDiagnosis, width: int) -> Panel:
    """One line each; those that do not answer come last and say why."""
    table = Table(box=None, padding=(0, 1), expand=True)
    table.add_column("replica", no_wrap=True, overflow="ellipsis", ratio=3)
    for name in ("run", "wait", "KV", "tok/s", "TTFT p95", "ITL p99", "good"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("finding", no_wrap=True, overflow="ellipsis", ratio=2)
    silent: list[Text] = []
    for line in fleet.replicas:
        named = Text(_short(line.name), style=_STATE_STYLE[line.state])
        if line.state is ReplicaState.UNREAD:
            silent.append(Text(f" {named} {line.why}", style=_STATE_STYLE[line.state]))
        else:
            table.add_row(named, *_numbers(line), _finding(line))
    lines: list[RenderableType] = [table, *silent]
    return Panel(Group(*lines), title="replicas, last 60 s", title_align="left", width=width)


def findings(fleet: FleetDiagnosis, width: int) -> Panel:
    """The findings of all replicas, each once."""
    text = Text()
    if not fleet.findings:
        text.append("nothing found", style="green")
    for found in fleet.findings:
        text.append(f"{found.symptom.value} ", style="bold red")
        text.append(f"{_where(found)}: {found.worst.claim}; see {found.worst.runbook}\n")
        if found.worst.chain:
            text.append(f"  {found.worst.chain_text}\n")
    text.rstrip()
    return Panel(text, title="diagnosis", title_align="left", width=width)


def _where(found: FleetFinding) -> str:
    whose = f" by tenant {found.tenant}" if found.tenant else ""
    many = f" and {len(found.replicas) - 1} more" if len(found.replicas) > 1 else ""
    return f"on {_short(found.replicas[0])}{many}{whose}"


def _numbers(line: ReplicaLine) -> list[str]:
    return [
        str(line.running),
        str(line.waiting),
        f"{100 * line.blocks_used / line.blocks_total:.0f} %" if line.blocks_total else "-",
        f"{line.output_tokens_per_s:.0f}",
        milliseconds(None if line.ttft is None else line.ttft.p95_ns),
        milliseconds(None if line.itl is None else line.itl.p99_ns),
        f"{100 * line.good / line.attempted:.0f} %" if line.attempted else "-",
    ]


def _finding(line: ReplicaLine) -> Text:
    if line.state is ReplicaState.NOT_READY:
        return Text(", ".join(("not ready", *line.symptoms)), style="bold red")
    if line.symptoms:
        return Text(", ".join(symptom.value for symptom in line.symptoms), style="red")
    if line.why:
        return Text(line.why, style="yellow")
    return Text("idle" if line.state is ReplicaState.IDLE else line.verdict, style="dim")


def _short(name: str) -> str:
    return name.removeprefix("http://")
