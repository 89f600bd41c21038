"""Attributes of spans: the GenAI semantic conventions, the names that vLLM emits, and ours.

The same value often has two names, because tools read one or the other. Nothing here is a
prompt, an output or a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import Event

from telemetry.facts.reasons import EndReason, Outcome, Phase
from telemetry.facts.records import UNKNOWN_ROUTE
from telemetry.numbers.quantiles import median, quantile_sorted
from telemetry.requests.phases import PhaseSpan, RequestTimeline
from telemetry.traces.stall_spans import Attributes, account_attributes
from telemetry.traces.tool_spans import call_attributes, parse_attributes

MAX_ATTRIBUTES = 128
MAX_VALUES = 128  # of an attribute that is a list
MAX_EVENTS = 128
_RESPONSES_ROUTE = "/v1/responses"
_SLOW_FACTOR = 2
_CUT_BY_LENGTH = (EndReason.MAX_TOKENS, EndReason.CONTEXT)


def cut(kind: str, found: Sequence[object], limit: int) -> Attributes:
    """The attribute that counts what is beyond `limit`; empty when nothing is."""
    return {f"phasescope.cut.{kind}": len(found) - limit} if len(found) > limit else {}


_ID_PREFIXES = {"chat": "chatcmpl", "embeddings": "embd"}


def root_attributes(timeline: RequestTimeline) -> Attributes:
    """Attributes of the root span."""
    accepted, parsed, ended = timeline.accepted, timeline.parsed, timeline.ended
    attributes: Attributes = {
        "gen_ai.operation.name": accepted.operation,
        "gen_ai.provider.name": "phasescope",
        "gen_ai.request.id": accepted.request_id,
        "gen_ai.usage.output_tokens": ended.output_tokens,
        "gen_ai.usage.completion_tokens": ended.output_tokens,
        "gen_ai.latency.e2e": timeline.e2e_ns / 1e9,
        "phasescope.outcome": timeline.outcome.value,
        "phasescope.reason": ended.reason.value,
        "phasescope.tenant": accepted.tenant,
        "phasescope.slo_class": accepted.slo_class,
    }
    if accepted.route != UNKNOWN_ROUTE:
        attributes["http.request.method"] = "POST"
        attributes["http.route"] = accepted.route
        attributes["http.response.status_code"] = ended.status
    if ended.error_type is not None:
        attributes["error.type"] = ended.error_type
    if ended.status == 200:
        attributes["gen_ai.response.id"] = response_id(timeline)
    if parsed is not None:
        attributes |= {
            "gen_ai.request.model": parsed.model,
            "gen_ai.response.model": parsed.model,
            "gen_ai.request.stream": parsed.stream,
            "gen_ai.request.choice.count": parsed.choices,
            "gen_ai.request.n": parsed.choices,
            "gen_ai.request.presence_penalty": parsed.presence_penalty,
            "gen_ai.request.frequency_penalty": parsed.frequency_penalty,
            "gen_ai.output.type": parsed.output_type,
        }
        sampling = {
            "temperature": parsed.temperature,
            "top_p": parsed.top_p,
            "top_k": parsed.top_k,
        }
        attributes |= {
            f"gen_ai.request.{name}": value for name, value in sampling.items() if value is not None
        }
        if parsed.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = parsed.max_tokens
        if parsed.seed is not None:
            attributes["gen_ai.request.seed"] = parsed.seed
    if timeline.tokenized is not None:
        attributes["gen_ai.usage.input_tokens"] = timeline.tokenized.prompt_tokens
        attributes["gen_ai.usage.prompt_tokens"] = timeline.tokenized.prompt_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = timeline.cached_tokens
        attributes["gen_ai.usage.cached_tokens"] = timeline.cached_tokens
        attributes["gen_ai.usage.num_sequences"] = len(timeline.sequences)
    if ended.reasoning_tokens:
        attributes["gen_ai.usage.reasoning.output_tokens"] = ended.reasoning_tokens
    if ended.output_valid is not None:
        attributes["phasescope.output_valid"] = ended.output_valid
    attributes |= call_attributes(timeline.tool_calls)
    more = account_attributes(timeline.account)
    return attributes | _latencies(timeline) | _finish_reasons(timeline) | more


def response_id(timeline: RequestTimeline) -> str:
    """The `id` in the body of the answer."""
    accepted = timeline.accepted
    if accepted.route == _RESPONSES_ROUTE:
        return f"resp_{accepted.request_id}"
    prefix = _ID_PREFIXES.get(accepted.operation, "cmpl")
    return f"{prefix}-{accepted.request_id}"


def _latencies(timeline: RequestTimeline) -> Attributes:
    attributes: Attributes = {}
    if timeline.ttft_ns is not None:
        attributes["gen_ai.latency.time_to_first_token"] = timeline.ttft_ns / 1e9
        if timeline.parsed is not None and timeline.parsed.stream:
            attributes["gen_ai.response.time_to_first_chunk"] = timeline.ttft_ns / 1e9
    for name, phase in (
        ("queue", Phase.QUEUE),
        ("model_prefill", Phase.PREFILL),
        ("model_decode", Phase.DECODE),
    ):
        spent_ns = timeline.phase_ns(phase)
        if spent_ns is not None:
            attributes[f"gen_ai.latency.time_in_{name}"] = spent_ns / 1e9
    prefill_ns, decode_ns = timeline.phase_ns(Phase.PREFILL), timeline.phase_ns(Phase.DECODE)
    if prefill_ns is not None and decode_ns is not None:
        attributes["gen_ai.latency.time_in_model_inference"] = (prefill_ns + decode_ns) / 1e9
    return attributes


def _finish_reasons(timeline: RequestTimeline) -> Attributes:
    """A choice each, in the words of the answer; what cut a request short is in
    `phasescope.reason`."""
    if timeline.outcome is not Outcome.FINISHED or timeline.accepted.operation == "embeddings":
        return {}
    calls = () if timeline.tool_calls is None else timeline.tool_calls.by_choice
    words = [
        _finish_reason(sequence.end_reason, sequence.choice < len(calls) and calls[sequence.choice])
        for sequence in timeline.sequences
    ]
    shown = {"gen_ai.response.finish_reasons": tuple(words[:MAX_VALUES])}
    return {**shown, **cut("finish_reasons", words, MAX_VALUES)}


def _finish_reason(reason: EndReason | None, calls: int) -> str:
    if reason in _CUT_BY_LENGTH:
        return "length"
    return "tool_calls" if calls else "stop"


def phase_attributes(timeline: RequestTimeline, name: Phase) -> Attributes:
    """What is worth saying about one phase."""
    match name:
        case Phase.QUEUE:
            return _queue_attributes(timeline)
        case Phase.PREFILL:
            chunks = [chunk for s in timeline.sequences for chunk in s.chunks]
            return {
                "phasescope.prefill.chunks": len(chunks),
                "phasescope.prefill.tokens": sum(chunk.tokens for chunk in chunks),
                "phasescope.prefill.recompute_tokens": sum(c.recompute_tokens for c in chunks),
                "phasescope.prefill.cached_tokens": timeline.cached_tokens,
            }
        case Phase.DECODE:
            gaps = sorted(end - start for start, end in token_gaps(timeline))
            attributes: Attributes = {"phasescope.decode.tokens": timeline.token_count}
            middle_ns = quantile_sorted(gaps, 0.5)
            if middle_ns is not None:
                attributes["phasescope.itl.p50_ms"] = middle_ns / 1e6
                attributes["phasescope.itl.max_ms"] = gaps[-1] / 1e6
            return attributes
        case Phase.DETOKENIZE:
            busy = {"phasescope.detokenize.busy_ms": timeline.ended.detokenize_busy_ns / 1e6}
            return busy | parse_attributes(timeline.tool_calls)
        case Phase.DELIVER:
            return {"phasescope.deliver.bytes": timeline.ended.bytes_sent}
        case Phase.PARSE:
            parsed = timeline.parsed
            return {} if parsed is None else {"phasescope.parse.wait_ms": parsed.waited_ns / 1e6}
        case Phase.ACCEPT | Phase.TOKENIZE:
            return {}


def _queue_attributes(timeline: RequestTimeline) -> Attributes:
    attributes: Attributes = {}
    waits_ns: dict[str, int] = {}
    for sequence in timeline.sequences:
        for wait in sequence.waits:
            reason, spent_ns = wait.reason.value, wait.end_ns - wait.start_ns
            waits_ns[reason] = waits_ns.get(reason, 0) + spent_ns
    for reason, spent_ns in waits_ns.items():
        attributes[f"phasescope.wait.{reason}_ms"] = spent_ns / 1e6
    return attributes


def token_gaps(timeline: RequestTimeline) -> list[tuple[int, int]]:
    """(start, end) of each gap between successive tokens."""
    return [
        pair
        for sequence in timeline.sequences
        for pair in zip(sequence.token_ns, sequence.token_ns[1:], strict=False)
    ]


def slow_gaps(timeline: RequestTimeline, phase: PhaseSpan) -> list[tuple[int, int]]:
    """The gaps longer than _SLOW_FACTOR times the median, longest first."""
    gaps = [gap for gap in token_gaps(timeline) if phase.start_ns <= gap[1] <= phase.end_ns]
    if len(gaps) < 3:
        return []
    bar_ns = _SLOW_FACTOR * (median(end - start for start, end in gaps) or 0)
    slow = [gap for gap in gaps if gap[1] - gap[0] > bar_ns]
    return sorted(slow, key=lambda gap: gap[0] - gap[1])


def within_limits(
    attributes: Attributes, events: Sequence[Event]
) -> tuple[Attributes, Sequence[Event]]:
    """Cut to MAX_ATTRIBUTES and MAX_EVENTS, with the number cut as an attribute."""
    if len(events) > MAX_EVENTS:
        attributes = attributes | cut("events", events, MAX_EVENTS)
        events = events[:MAX_EVENTS]
    if len(attributes) > MAX_ATTRIBUTES:
        names = list(attributes)
        kept = {name: attributes[name] for name in names[: MAX_ATTRIBUTES - 1]}
        attributes = kept | cut("attributes", names, MAX_ATTRIBUTES - 1)
    return attributes, events
