"""Calls of functions on spans: what became of them, what reading them cost, how long they took.

No name of a function, no argument and no result: those are texts of clients and models.
"""

from __future__ import annotations

from opentelemetry.trace import Link, SpanContext, TraceFlags

from telemetry.facts.tool_records import ReturnedCall, ToolCallsMade
from telemetry.traces.stall_spans import Attributes


def tool_attributes(call: ReturnedCall) -> Attributes:
    """Attributes of a `tool` span: whose calls, and how many of them have results now."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "phasescope.tool.results": call.results,
        "phasescope.tool.request_id": call.request_id,
        "phasescope.tool.trace_id": call.trace_id,
    }


def tool_link(call: ReturnedCall) -> Link:
    """To the root span of the request whose answer made the calls."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(int(call.trace_id, 16), int(call.span_id, 16), True, flags)
    return Link(context, {"phasescope.link": "call"})


def call_attributes(made: ToolCallsMade | None) -> Attributes:
    """Attributes of the root span: the calls in the answer."""
    if made is None:
        return {}
    counts: Attributes = {
        f"phasescope.tool_calls.{outcome.value}": count
        for outcome, count in made.outcomes.items()
        if count
    }
    return {"phasescope.tool_calls": made.calls, **counts}


def parse_attributes(made: ToolCallsMade | None) -> Attributes:
    """Attributes of the phase in which text is made: the part of it that reading calls took, and
    the check after the answer was sent."""
    if made is None:
        return {}
    return {
        "phasescope.detokenize.tool_parse_ms": made.parse_ns / 1e6,
        "phasescope.tool_check_ms": made.validate_ns / 1e6,
    }
