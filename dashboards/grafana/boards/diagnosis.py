"""What is wrong, what it has cost, who took time from whom, and what the autopilot does."""

from __future__ import annotations

from dashboards.grafana.queries import highest, rate, total
from dashboards.grafana.spec import Board, Panel, Query, Row, Show
from telemetry.metrics.catalog import harm, machine

_FIRING = (
    "max by (alertname, instance, symptom, slo_class) "
    '(ALERTS{alertname=~"Phasescope.+", alertstate="firing"})'
)

_FINDINGS = Row(
    title="Findings",
    panels=(
        Panel(
            title="What is wrong",
            show=Show.STATES,
            queries=(
                Query(highest(harm.FINDING, "instance", "symptom"), "{{instance}} {{symptom}}"),
            ),
            about="Empty while nothing is found. One replica: look at that machine; all of them: "
            "look at the traffic. `phasescope diagnose` has the evidence.",
            warn_above=1,
            width=12,
        ),
        Panel(
            title="Time lost to each finding since its onset",
            queries=(
                Query(
                    total(harm.FINDING_HARM_SECONDS, "instance", "symptom"),
                    "{{instance}} {{symptom}}",
                ),
            ),
            unit="s",
            about=harm.FINDING_HARM_SECONDS.help,
            width=12,
        ),
        Panel(
            title="Replicas with each finding",
            queries=(Query(total(harm.FINDING, "symptom"), "{{symptom}}"),),
            about="As many as there are replicas: it is the traffic, not a machine.",
        ),
        Panel(
            title="Something is wrong, and the record does not say what",
            queries=(Query(highest(harm.INDETERMINATE, "instance"), "{{instance}}"),),
            about=harm.INDETERMINATE.help,
            max_value=1,
        ),
        Panel(
            title="Alerts that fire",
            show=Show.STATES,
            queries=(Query(_FIRING, "{{instance}} {{alertname}} {{symptom}} {{slo_class}}"),),
            about="As Prometheus evaluates the rules of dashboards/prometheus.",
            warn_above=1,
        ),
    ),
)

_HARM = Row(
    title="Who took time from others",
    panels=(
        Panel(
            title="By part of the ledger",
            queries=(Query(rate(harm.HARM_SECONDS, "part"), "{{part}}"),),
            unit="percentunit",
            about=f"{harm.HARM_SECONDS.help} Seconds a second.",
            stacked=True,
        ),
        Panel(
            title="By tenant",
            queries=(Query(f"topk(10, {rate(harm.HARM_BY_TENANT, 'tenant')})", "{{tenant}}"),),
            unit="percentunit",
            about=f"{harm.HARM_BY_TENANT.help} The first ten.",
        ),
        Panel(
            title="By class",
            queries=(Query(rate(harm.HARM_BY_CLASS, "slo_class"), "{{slo_class}}"),),
            unit="percentunit",
            about=harm.HARM_BY_CLASS.help,
        ),
        Panel(
            title="Latency added by pauses of the processes",
            queries=(
                Query(
                    rate(machine.HOST_VICTIM_SECONDS, "process", "cause"), "{{process}} {{cause}}"
                ),
            ),
            unit="percentunit",
            about=machine.HOST_VICTIM_SECONDS.help,
        ),
        Panel(
            title="Requests delayed by pauses of the processes",
            queries=(
                Query(rate(machine.HOST_VICTIMS, "process", "cause"), "{{process}} {{cause}}"),
            ),
            unit="reqps",
            about=machine.HOST_VICTIMS.help,
        ),
    ),
)

_AUTOPILOT = Row(
    title="Root cause and autopilot",
    panels=(
        Panel(
            title="Decisions of the autopilot",
            queries=(Query(total(harm.AUTOPILOT_DECISIONS, "decision"), "{{decision}}"),),
            about=f"{harm.AUTOPILOT_DECISIONS.help} Since the start.",
        ),
        Panel(
            title="Searches that gave no result",
            queries=(
                Query(total(harm.ROOT_FAILURES, "reason"), "root cause: {{reason}}"),
                Query(total(harm.AUTOPILOT_FAILURES, "reason"), "autopilot: {{reason}}"),
            ),
            about=f"{harm.ROOT_FAILURES.help} {harm.AUTOPILOT_FAILURES.help} Since the start.",
        ),
    ),
)

BOARD = Board(
    name="diagnosis",
    title="phasescope / Diagnosis",
    about="What is wrong, what it has cost, and who took time from whom.",
    rows=(_FINDINGS, _HARM, _AUTOPILOT),
)
