"""Traces that are slow or failed, whether they all arrive, and whether the record is whole."""

from __future__ import annotations

from dashboards.grafana.queries import highest, rate, share, total
from dashboards.grafana.spec import Board, Needs, Panel, Query, Row, Show, TraceQuery
from telemetry.metrics.catalog import recording, tracing

_TRACES = Row(
    title="Traces",
    panels=(
        Panel(
            title="Requests with late tokens",
            show=Show.TABLE,
            traces=TraceQuery(span="stall"),
            about="A gap between tokens above the target of the class is a span `stall`, linked to "
            "the request that took the time.",
            needs=Needs.TRACE_STORE,
            width=12,
        ),
        Panel(
            title="Requests that failed",
            show=Show.TABLE,
            traces=TraceQuery(is_failed=True),
            about="Through the server's own fault.",
            needs=Needs.TRACE_STORE,
            width=12,
        ),
        Panel(
            title="Trace $trace",
            show=Show.TRACES,
            traces=TraceQuery(trace_id="$trace"),
            about="Type a trace id in above; an exemplar has one.",
            needs=Needs.TRACE_STORE,
            width=24,
            height=14,
        ),
    ),
)

_KEPT = Row(
    title="What is kept and delivered",
    panels=(
        Panel(
            title="Tracing mode",
            show=Show.STATES,
            queries=(
                Query(highest(tracing.TRACING_MODE, "instance", "mode"), "{{instance}} {{mode}}"),
            ),
            about=tracing.TRACING_MODE.help,
        ),
        Panel(
            title="Share of the rest that is kept",
            queries=(Query(highest(tracing.TRACE_RATE, "instance"), "{{instance}}"),),
            unit="percentunit",
            about=tracing.TRACE_RATE.help,
        ),
        Panel(
            title="Traces kept and left",
            queries=(
                Query(rate(tracing.TRACES_KEPT, "reason"), "kept: {{reason}}"),
                Query(rate(tracing.TRACES_LEFT, "reason"), "left: {{reason}}"),
            ),
            unit="cps",
            about=f"{tracing.TRACES_KEPT.help} {tracing.TRACES_LEFT.help}",
            stacked=True,
        ),
        Panel(
            title="Spans delivered and lost",
            queries=(
                Query(rate(tracing.SPANS_EXPORTED), "delivered"),
                Query(rate(tracing.SPANS_DROPPED, "reason"), "lost: {{reason}}"),
            ),
            unit="cps",
            about=f"{tracing.SPANS_EXPORTED.help} {tracing.SPANS_DROPPED.help}",
        ),
        Panel(
            title="Exports of spans",
            queries=(
                Query(rate(tracing.EXPORT_ATTEMPTS), "attempts"),
                Query(rate(tracing.EXPORT_FAILURES), "failed"),
            ),
            unit="reqps",
            about=f"{tracing.EXPORT_ATTEMPTS.help} {tracing.EXPORT_FAILURES.help}",
        ),
        Panel(
            title="Age of what is exported",
            queries=(
                Query(highest(tracing.EXPORT_LAG, "instance"), "{{instance}} queued or in flight"),
                Query(highest(tracing.LAST_EXPORT_LAG, "instance"), "{{instance}} delivered last"),
            ),
            unit="s",
            about=f"{tracing.EXPORT_LAG.help} {tracing.LAST_EXPORT_LAG.help}",
        ),
        Panel(
            title="Traces queued",
            queries=(Query(total(tracing.TRACES_QUEUED, "instance"), "{{instance}}"),),
            about=tracing.TRACES_QUEUED.help,
        ),
        Panel(
            title="Bytes of spans sent",
            queries=(Query(rate(tracing.EXPORT_BYTES, "instance"), "{{instance}}"),),
            unit="Bps",
            about=tracing.EXPORT_BYTES.help,
        ),
        Panel(
            title="CPU time of the exporter",
            queries=(Query(rate(tracing.EXPORT_SECONDS, "instance"), "{{instance}}"),),
            unit="percentunit",
            about=tracing.EXPORT_SECONDS.help,
        ),
        Panel(
            title="Metrics over OTLP",
            queries=(
                Query(rate(tracing.METRIC_EXPORTS, "result"), "exports: {{result}}"),
                Query(rate(tracing.METRIC_POINTS_REJECTED), "points rejected"),
            ),
            about=f"{tracing.METRIC_EXPORTS.help} {tracing.METRIC_POINTS_REJECTED.help}",
        ),
    ),
)

_RECORD = Row(
    title="Is the record whole",
    panels=(
        Panel(
            title="Facts lost, and facts that wait",
            queries=(
                Query(total(recording.FACTS_LOST, "instance"), "{{instance}} lost since the start"),
                Query(total(recording.FACTS_WAITING, "instance"), "{{instance}} waiting"),
            ),
            about=f"{recording.FACTS_LOST.help} {recording.FACTS_WAITING.help}",
        ),
        Panel(
            title="Recording on, folds detached",
            queries=(
                Query(highest(recording.RECORDING, "instance"), "{{instance}} records"),
                Query(
                    f"{total(recording.FOLDS_DETACHED, 'instance')}\n"
                    f"or\n0 * {total(recording.RECORDING, 'instance')}",
                    "{{instance}} parts detached",
                ),
            ),
            about=f"{recording.RECORDING.help} {recording.FOLDS_DETACHED.help}",
        ),
        Panel(
            title="Exceptions in folds",
            queries=(
                Query(total(recording.FOLD_ERRORS, "instance", "fold"), "{{instance}} {{fold}}"),
            ),
            about=f"{recording.FOLD_ERRORS.help} Since the start.",
        ),
        Panel(
            title="CPU time of folds",
            queries=(Query(rate(recording.FOLD_SECONDS, "fold"), "{{fold}}"),),
            unit="percentunit",
            about=recording.FOLD_SECONDS.help,
            stacked=True,
        ),
        Panel(
            title="Not observed of requests' time",
            queries=(
                Query(share(rate(recording.NOT_OBSERVED), rate(recording.ACCOUNTED)), "of all"),
                Query(
                    highest(recording.NOT_OBSERVED_SHARE, "percentile"),
                    "of a request, {{percentile}}",
                ),
            ),
            unit="percentunit",
            about=f"{recording.NOT_OBSERVED_SHARE.help} {recording.ACCOUNTED.help}",
        ),
        Panel(
            title="Not observed, by reason",
            queries=(Query(rate(recording.NOT_OBSERVED, "reason"), "{{reason}}"),),
            unit="percentunit",
            about=f"{recording.NOT_OBSERVED.help} Seconds a second.",
            stacked=True,
        ),
        Panel(
            title="Clocks of a fleet",
            queries=(
                Query(rate(recording.CLOCK_FINDINGS, "finding"), "{{finding}}"),
                Query(rate(recording.CLOCK_STEPS), "step"),
            ),
            unit="cps",
            about=f"{recording.CLOCK_FINDINGS.help} {recording.CLOCK_STEPS.help}",
        ),
        Panel(
            title="How far the clocks of nodes are known",
            queries=(Query(highest(recording.CLOCK_EPSILON, "engine"), "{{engine}}"),),
            unit="s",
            about=recording.CLOCK_EPSILON.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="The journal covers",
            queries=(Query(highest(recording.JOURNAL_SECONDS, "instance"), "{{instance}}"),),
            unit="s",
            about=f"{recording.JOURNAL_SECONDS.help} Less than five minutes are too few.",
        ),
        Panel(
            title="Memory of the journal",
            queries=(
                Query(
                    share(
                        total(recording.JOURNAL_BYTES, "instance"),
                        total(recording.JOURNAL_CAPACITY, "instance"),
                    ),
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
            about=f"{recording.JOURNAL_BYTES.help} It is meant to be full.",
            max_value=1,
        ),
        Panel(
            title="Facts in the journal, and dropped from it",
            queries=(
                Query(total(recording.JOURNAL_FACTS, "instance"), "{{instance}} facts"),
                Query(rate(recording.JOURNAL_DROPPED, "instance"), "{{instance}} dropped a second"),
                Query(highest(recording.JOURNAL_SHORT, "instance"), "{{instance}} too short"),
            ),
            about=f"{recording.JOURNAL_DROPPED.help} {recording.JOURNAL_SHORT.help}",
        ),
        Panel(
            title="Errors of the journal folder since the start",
            queries=(
                Query(total(recording.JOURNAL_WRITE_ERRORS, "instance"), "{{instance}} errors"),
                Query(total(recording.JOURNAL_PIECES_LOST, "instance"), "{{instance}} pieces lost"),
            ),
            about=f"{recording.JOURNAL_WRITE_ERRORS.help} {recording.JOURNAL_PIECES_LOST.help}",
        ),
        Panel(
            title="Dumps since the start",
            queries=(
                Query(total(recording.DUMPS, "reason"), "{{reason}}"),
                Query(total(recording.DUMPS_SUPPRESSED, "reason"), "suppressed: {{reason}}"),
                Query(total(recording.DUMPS_FAILED), "failed"),
            ),
            about=f"{recording.DUMPS.help} {recording.DUMPS_SUPPRESSED.help}",
        ),
        Panel(
            title="Incident folders since the start",
            queries=(
                Query(total(recording.REPORTS), "written"),
                Query(total(recording.REPORTS_SUPPRESSED), "suppressed"),
                Query(total(recording.REPORT_FAILURES, "reason"), "failed: {{reason}}"),
            ),
            about=f"{recording.REPORTS.help} {recording.REPORTS_SUPPRESSED.help}",
        ),
    ),
)

BOARD = Board(
    name="tracing",
    title="phasescope / Tracing and the record",
    about="Traces that are slow, whether they all arrive, and whether the record is whole.",
    rows=(_TRACES, _KEPT, _RECORD),
    asks_trace=True,
)
