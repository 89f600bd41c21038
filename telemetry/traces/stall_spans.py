"""The ledger on spans: a request's time by part, its stalls, and their links to culprits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, TraceFlags
from opentelemetry.util.types import AttributeValue

from telemetry.requests.account import Account, Stall
from telemetry.requests.phases import PreemptedSpan
from telemetry.traces.link_targets import LinkTargets

Attributes = dict[str, AttributeValue]
MAX_LINKS = 8


def stall_links(
    stall: Stall, targets: LinkTargets, preempted: Sequence[tuple[PreemptedSpan, ReadableSpan]]
) -> tuple[Link, ...]:
    """Links to the culprit's span, if that is exported, and to the sequence's own preemptions
    within the gap. `preempted` are spans of the same trace."""
    links: list[Link] = []
    span_id = targets.span_of(stall)
    if span_id is not None and stall.culprit_trace_id is not None:
        flags = TraceFlags(TraceFlags.SAMPLED)
        context = SpanContext(int(stall.culprit_trace_id, 16), span_id, True, flags)
        links.append(Link(context, {"phasescope.link": "culprit"}))
    for gap, span in preempted:
        meets = gap.start_ns < stall.end_ns and stall.begin_ns < gap.end_ns
        if gap.seq_id == stall.seq_id and meets and span.context is not None:
            links.append(Link(span.context, {"phasescope.link": "preempted"}))
    return tuple(links[:MAX_LINKS])


def stall_attributes(stall: Stall) -> Attributes:
    """The gap, its largest part and the culprit; times in ms."""
    attributes: Attributes = {
        "phasescope.seq_id": stall.seq_id,
        "phasescope.stall.gap_ms": (stall.end_ns - stall.begin_ns) / 1e6,
        "phasescope.stall.target_ms": stall.target_ns / 1e6,
        "phasescope.stall.part": stall.part.value,
        "phasescope.stall.part_ms": stall.part_ns / 1e6,
    }
    optional: Mapping[str, AttributeValue | None] = {
        "phasescope.stall.reason": stall.reason or None,
        "phasescope.stall.cause": stall.cause,
        "phasescope.culprit.request_id": stall.culprit_request_id,
        "phasescope.culprit.trace_id": stall.culprit_trace_id,
        "phasescope.culprit.step_id": stall.culprit_step_id,
    }
    return attributes | {name: value for name, value in optional.items() if value is not None}


def account_attributes(account: Account | None) -> Attributes:
    """The ledger by part, in ms; the parts add up to the length of the root span."""
    if account is None:
        return {}
    parts = account.ledger.by_part()
    found: Attributes = {f"phasescope.time.{p.value}_ms": ns / 1e6 for p, ns in parts.items() if ns}
    found["phasescope.stalls"] = len(account.stalls) + account.stalls_cut
    if account.stalls_cut:
        found["phasescope.cut.stalls"] = account.stalls_cut
    return found
