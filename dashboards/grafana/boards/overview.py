"""The board to begin with: are promises kept, by which replica are they not, and what is wrong."""

from __future__ import annotations

from dashboards.grafana.boards.kv_row import KV_ROW
from dashboards.grafana.boards.slo import burn, good_share
from dashboards.grafana.queries import highest, quantile, rate, samples, share, total
from dashboards.grafana.spec import Board, Needs, Panel, Query, Row, Show
from telemetry.metrics.catalog import attach, engine, fleet, gateway, harm, slo
from telemetry.metrics.catalog.latency import HISTOGRAMS
from telemetry.requests.phases import Measure

TTFT, ITL = (
    next(metric for metric in HISTOGRAMS if metric.measure is measure)
    for measure in (Measure.TTFT, Measure.ITL)
)

_COST = samples(slo.COST, 'window="300s"')
# of the job by whose name the alerts know a fleet; one that does not answer is still a target
_TARGETS = 'count (up{job="phasescope", instance=~"$instance"})'

_NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Replicas ready",
            show=Show.NUMBER,
            queries=(Query(f"{total(engine.READY)} / {_TARGETS}\nor vector(0)"),),
            unit="percentunit",
            about="Share of the servers of the scrape job phasescope that take requests.",
            warn_below=1,
            max_value=1,
            width=4,
            height=4,
        ),
        Panel(
            title="Requests a second",
            show=Show.NUMBER,
            queries=(Query(rate(gateway.REQUESTS)),),
            about=gateway.REQUESTS.help,
            width=4,
            height=4,
        ),
        Panel(
            title="Output tokens a second",
            show=Show.NUMBER,
            queries=(Query(rate(engine.OUTPUT_TOKENS)),),
            about=engine.OUTPUT_TOKENS.help,
            width=4,
            height=4,
        ),
        Panel(
            title="Good requests",
            show=Show.NUMBER,
            queries=(Query(good_share()),),
            unit="percentunit",
            about="Share of requests that met the SLO of their class.",
            warn_below=0.99,
            width=4,
            height=4,
        ),
        Panel(
            title="Worst burn of an error budget",
            show=Show.NUMBER,
            queries=(Query(f"max ({burn()})"),),
            about="Over all classes. At 1 a budget lasts exactly its period.",
            warn_above=1,
            width=4,
            height=4,
        ),
        Panel(
            title="KV cache in use",
            show=Show.NUMBER,
            queries=(Query(share(total(engine.BLOCKS_USED), total(engine.BLOCKS_TOTAL))),),
            unit="percentunit",
            about=engine.BLOCKS_USED.help,
            warn_above=0.95,
            max_value=1,
            width=4,
            height=4,
        ),
    ),
)

_PROMISES = Row(
    title="Promises",
    panels=(
        Panel(
            title="Time to first token, p99 by class",
            queries=(Query(quantile(0.99, TTFT, "slo_class"), "{{slo_class}}", exemplars=True),),
            unit="s",
            about=f"{TTFT.help} Diamonds are requests: each leads to its trace.",
            links_to_traces=True,
        ),
        Panel(
            title="Inter-token latency, p99 by class",
            queries=(Query(quantile(0.99, ITL, "slo_class"), "{{slo_class}}", exemplars=True),),
            unit="s",
            about=f"{ITL.help} Diamonds are requests: each leads to its trace.",
            links_to_traces=True,
        ),
        Panel(
            title="Burn of the error budget by class",
            queries=(Query(burn(), "{{slo_class}}"),),
            about="At 1 the budget lasts exactly its period; the alerts page above 14.4 and 6.",
            warn_above=1,
        ),
        Panel(
            title="Requests by outcome",
            queries=(Query(rate(gateway.REQUESTS, "outcome"), "{{outcome}}"),),
            unit="reqps",
            about=gateway.REQUESTS.help,
            stacked=True,
        ),
        Panel(
            title="Running and waiting",
            queries=(
                Query(total(engine.RUNNING), "running"),
                Query(total(engine.WAITING), "waiting"),
            ),
            about=f"{engine.RUNNING.help} {engine.WAITING.help}",
        ),
        Panel(
            title="What is wrong",
            show=Show.STATES,
            queries=(
                Query(highest(harm.FINDING, "instance", "symptom"), "{{instance}} {{symptom}}"),
            ),
            about="Findings of the diagnosis; empty while nothing is found. "
            "Each has a runbook of its name.",
            warn_above=1,
        ),
    ),
)

_REPLICAS = Row(
    title="Replicas beside each other",
    panels=(
        Panel(
            title="Good requests by replica",
            queries=(Query(good_share("instance"), "{{instance}}"),),
            unit="percentunit",
            about="One line below the others is one bad replica; all of them, bad traffic.",
            max_value=1,
        ),
        Panel(
            title="Time to first token, p99 by replica",
            queries=(Query(quantile(0.99, TTFT, "instance"), "{{instance}}"),),
            unit="s",
            about=TTFT.help,
        ),
        Panel(
            title="Inter-token latency, p99 by replica",
            queries=(Query(quantile(0.99, ITL, "instance"), "{{instance}}"),),
            unit="s",
            about=ITL.help,
        ),
        Panel(
            title="Output tokens a second by replica",
            queries=(Query(rate(engine.OUTPUT_TOKENS, "instance"), "{{instance}}"),),
            about=engine.OUTPUT_TOKENS.help,
        ),
        Panel(
            title="Waiting by replica",
            queries=(Query(total(engine.WAITING, "instance"), "{{instance}}"),),
            about=engine.WAITING.help,
        ),
        Panel(
            title="Cost of a million tokens",
            queries=(Query(f"avg by (which) ({_COST})", "of {{which}} requests"),),
            about=slo.COST.help,
            needs=Needs.PRICE,
        ),
    ),
)

_GATEWAY = Row(
    title="Gateway",
    panels=(
        Panel(
            title="Connections",
            queries=(Query(total(gateway.CONNECTIONS, "instance"), "{{instance}}"),),
            about=gateway.CONNECTIONS.help,
        ),
        Panel(
            title="Connections accepted, refused and not to be had",
            queries=(
                Query(rate(gateway.CONNECTIONS_ACCEPTED), "accepted"),
                Query(rate(gateway.CONNECTIONS_REFUSED, "reason"), "refused: {{reason}}"),
                Query(rate(gateway.ACCEPT_FAILURES), "accept failed"),
            ),
            unit="cps",
            about=f"{gateway.CONNECTIONS_REFUSED.help} {gateway.ACCEPT_FAILURES.help}",
        ),
        Panel(
            title="Gateway processes, and those that ended",
            queries=(
                Query(total(gateway.GATEWAY_PROCESSES, "instance"), "{{instance}}"),
                Query(rate(gateway.GATEWAY_PROCESSES_ENDED, "reason"), "ended: {{reason}}"),
                Query(rate(gateway.FACTS_BEFORE_CAUSES), "facts before their causes"),
            ),
            about=f"{gateway.GATEWAY_PROCESSES.help} {gateway.FACTS_BEFORE_CAUSES.help}",
            needs=Needs.GATEWAYS,
        ),
        Panel(
            title="Bodies that wait to be read",
            queries=(Query(total(gateway.INGEST_WAITING, "instance"), "{{instance}}"),),
            about=gateway.INGEST_WAITING.help,
        ),
        Panel(
            title="Size of the bodies that wait",
            queries=(Query(total(gateway.INGEST_WAITING_BYTES, "instance"), "{{instance}}"),),
            unit="bytes",
            about=gateway.INGEST_WAITING_BYTES.help,
        ),
        Panel(
            title="Bodies refused, ingest workers ended",
            queries=(
                Query(rate(gateway.INGEST_REFUSED), "refused"),
                Query(rate(gateway.INGEST_WORKERS_ENDED, "reason"), "worker ended: {{reason}}"),
            ),
            about=f"{gateway.INGEST_REFUSED.help} {gateway.INGEST_WORKERS_ENDED.help}",
        ),
    ),
)

_FLEET = Row(
    title="Engines behind a network",
    panels=(
        Panel(
            title="What is wrong with the fleet",
            show=Show.STATES,
            queries=(
                Query(
                    highest(fleet.FAULT, "instance", "symptom", "engine"),
                    "{{instance}} {{symptom}} {{engine}}",
                ),
            ),
            about=f"{fleet.FAULT.help} The pages are runbooks/fleet.",
            needs=Needs.FLEET,
            warn_above=1,
        ),
        Panel(
            title="Time lost to it",
            queries=(
                Query(
                    highest(fleet.FAULT_HARM_SECONDS, "instance", "symptom", "engine"),
                    "{{instance}} {{symptom}} {{engine}}",
                ),
            ),
            unit="s",
            about=fleet.FAULT_HARM_SECONDS.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Engines of each gateway",
            queries=(Query(total(fleet.ENGINES, "state"), "{{state}}"),),
            about=fleet.ENGINES.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Gateways of each engine node",
            queries=(Query(total(fleet.NODE_GATEWAYS, "instance"), "{{instance}}"),),
            about=fleet.NODE_GATEWAYS.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Connections made, refused and lost",
            queries=(
                Query(rate(fleet.CONNECTS, "result"), "connect: {{result}}"),
                Query(rate(fleet.WIRE_CONNECTED), "proved"),
                Query(rate(fleet.WIRE_FAULTS, "fault"), "ended: {{fault}}"),
                Query(rate(fleet.WIRE_LOST), "with frames not written"),
                Query(rate(fleet.SEQUENCES_LOST), "sequences lost"),
            ),
            unit="cps",
            about=f"{fleet.WIRE_FAULTS.help} {fleet.SEQUENCES_LOST.help}",
            needs=Needs.FLEET,
        ),
        Panel(
            title="Time on the network of a sequence, mean",
            queries=(
                Query(
                    share(rate(fleet.WIRE_SECONDS, "engine"), rate(fleet.WIRE_SEQUENCES, "engine")),
                    "{{engine}}",
                ),
            ),
            unit="s",
            about=fleet.WIRE_SECONDS.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Frames between gateways and nodes",
            queries=(Query(rate(fleet.WIRE_FRAMES, "direction"), "{{direction}}"),),
            unit="cps",
            about=fleet.WIRE_FRAMES.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Bytes between gateways and nodes",
            queries=(Query(rate(fleet.WIRE_BYTES, "direction"), "{{direction}}"),),
            unit="Bps",
            about=fleet.WIRE_BYTES.help,
            needs=Needs.FLEET,
        ),
    ),
)

_ATTACHED = Row(
    title="Attached engines",
    panels=(
        Panel(
            title="Processes that are attached",
            queries=(Query(total(attach.ATTACHED_PROCESSES, "role"), "{{role}}"),),
            about=attach.ATTACHED_PROCESSES.help,
            needs=Needs.ATTACHED,
        ),
        Panel(
            title="Sequences, by what is seen of them",
            queries=(Query(rate(attach.ATTACH_SEQUENCES, "seen"), "{{seen}}"),),
            unit="cps",
            about=attach.ATTACH_SEQUENCES.help,
            needs=Needs.ATTACHED,
        ),
        Panel(
            title="Connections refused, parts that are not observed any more",
            queries=(
                Query(rate(attach.ATTACH_REFUSED, "reason"), "refused: {{reason}}"),
                Query(rate(attach.ATTACH_HOOKS_OFF, "role"), "turned off: {{role}}"),
            ),
            unit="cps",
            about=f"{attach.ATTACH_REFUSED.help} {attach.ATTACH_HOOKS_OFF.help}",
            needs=Needs.ATTACHED,
        ),
    ),
)

BOARD = Board(
    name="overview",
    title="phasescope / Overview",
    about="Are promises kept, by which replica are they not, and what is wrong.",
    rows=(_NOW, _PROMISES, _REPLICAS, _GATEWAY, _FLEET, KV_ROW, _ATTACHED),
)
