"""What became of the calls in an answer: kept for their results, checked, and recorded."""

from __future__ import annotations

from collections import Counter

from service.gateway.generation.choice import Choice
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.state import GatewayState
from service.gateway.generation.tool_results import CallOrigin
from service.text.tools.tool_use import ToolUse
from telemetry.facts.tool_records import ToolCallsMade


async def record_calls(
    state: GatewayState,
    recorder: RequestRecorder,
    use: ToolUse,
    choices: list[Choice],
    answered_ns: int,
) -> None:
    """The answer was sent: check its calls against their functions' schemas, and record the counts,
    as of `answered_ns`: a later stamp would come after the request's end.

    The calls are remembered before anything is waited for: their results may come at once.
    """
    readers = [choice.tools for choice in choices if choice.tools is not None]
    calls = [call for reader in readers for call in reader.calls]
    whole = [call for call in calls if call.is_whole]
    trace_id, span_id = recorder.span
    origin = CallOrigin(recorder.request_id, trace_id, span_id, answered_ns)
    forgotten = state.calls.remember((call.call_id for call in whole), origin)
    verdicts: list[bool | None] = []
    if whole:
        numbered = [(use.names.index(call.name), call.arguments) for call in whole]
        verdicts = await state.ingest.validate_calls(list(use.schemas), numbered)
    counts = Counter(verdicts)
    recorder.called(
        ToolCallsMade(
            request_id=recorder.request_id,
            at_ns=answered_ns,
            by_choice=tuple(len(reader.calls) for reader in readers),
            valid=counts[True],
            invalid=counts[False],
            unfinished=len(calls) - len(whole),
            unchecked=counts[None],
            malformed=sum(reader.malformed for reader in readers),
            parse_ns=sum(reader.parse_ns for reader in readers),
            validate_ns=state.clock.now_ns() - answered_ns if whole else 0,
            forgotten=forgotten,
        )
    )
