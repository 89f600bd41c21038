"""What the ledger puts on spans: a request's shares, its late tokens and whom they point to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from opentelemetry.trace import Link, SpanContext, TraceFlags
from opentelemetry.util.types import AttributeValue

from telemetry.ledger import Account, Stall

Attributes = dict[str, AttributeValue]


def chunk_span_id(trace_id: str, seq_id: int, step_id: int) -> int:
    """The id of a prefill chunk's span, known to whoever knows the chunk: the span of a late
    token points to it before, after or without that span being built."""
    name = f"{trace_id}/{seq_id}/{step_id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) or 1


def culprit_links(stall: Stall) -> tuple[Link, ...]:
    """To the chunk of the request that made the token late, if another request did."""
    trace_id, seq_id, step_id = (
        stall.culprit_trace_id,
        stall.culprit_seq_id,
        stall.culprit_step_id,
    )
    if trace_id is None or seq_id is None or step_id is None:
        return ()
    span_id = chunk_span_id(trace_id, seq_id, step_id)
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(int(trace_id, 16), span_id, True, flags)
    return (Link(context, {"phasescope.link": "culprit"}),)


def stall_attributes(stall: Stall) -> Attributes:
    """What made the token late, by whom, and the parts of the gap in ms."""
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
    """The ledger by part, in ms; they add up to the span."""
    if account is None:
        return {}
    parts = account.ledger.by_part()
    found: Attributes = {f"phasescope.time.{p.value}_ms": ns / 1e6 for p, ns in parts.items() if ns}
    found["phasescope.stalls"] = len(account.stalls) + account.stalls_cut
    if account.stalls_cut:
        found["phasescope.cut.stalls"] = account.stalls_cut
    return found
