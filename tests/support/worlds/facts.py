"""Short builders of facts for tests of the folds."""

from __future__ import annotations

from typing import Any

from telemetry.facts.engine_records import Row, SequenceEnded, SequenceQueued, StepRecorded
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.facts.step_parts import Skip

MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def accepted(request_id: str = "r1", at: int = 0, **fields: Any) -> RequestAccepted:
    values: dict[str, Any] = {
        "request_id": request_id,
        "at_ns": at * MS,
        "trace_id": TRACE,
        "parent_span_id": None,
        "trace_sampled": None,
        "trace_state": None,
        "route": "/v1/completions",
        "operation": "text_completion",
        "tenant": "",
        "slo_class": "",
        **fields,
    }
    return RequestAccepted(**values)


def parsed(request_id: str = "r1", at: int = 1, stream: bool = True) -> RequestParsed:
    return RequestParsed(request_id, at * MS, "model", stream, 1, 16, 1.0, 1.0, 0, None)


def tokenized(request_id: str = "r1", at: int = 2, prompt_tokens: int = 4) -> RequestTokenized:
    return RequestTokenized(request_id, at * MS, prompt_tokens)


def submitted(request_id: str = "r1", at: int = 2, seq_id: int = 1) -> SequenceSubmitted:
    return SequenceSubmitted(request_id, at * MS, seq_id, 0)


def queued(seq_id: int = 1, at: int = 3) -> SequenceQueued:
    return SequenceQueued(seq_id, at * MS, 0, 4, 16, "")


def sequence_ended(
    seq_id: int = 1, at: int = 60, reason: EndReason = EndReason.MAX_TOKENS
) -> SequenceEnded:
    return SequenceEnded(seq_id, at * MS, 0, reason, 2, 0)


def request_ended(
    request_id: str = "r1", at: int = 70, reason: EndReason = EndReason.MAX_TOKENS, **fields: Any
) -> RequestEnded:
    finished = reason.outcome == "finished"
    values: dict[str, Any] = {
        "request_id": request_id,
        "at_ns": at * MS,
        "reason": reason,
        "status": 200,
        "error_type": None if finished else reason.value,
        "output_tokens": 2,
        "first_sent_ns": None,
        "detokenized_ns": (at - 5) * MS if finished else None,
        "detokenize_busy_ns": 7,
        "bytes_sent": 10,
        "detected_ns": None,
        **fields,
    }
    return RequestEnded(**values)


def prefill(seq_id: int = 1, tokens: int = 4, context: int = 0, sampled: bool = True) -> Row:
    return Row(seq_id, True, tokens, context, 0, int(sampled), False)


def decode(seq_id: int = 1, context: int = 5) -> Row:
    return Row(seq_id, False, 1, context, 0, 1, False)


def step(
    step_id: int, begin: int, end: int, rows: list[Row], skips: tuple[Skip, ...] = (), **f: Any
) -> StepRecorded:
    values: dict[str, Any] = {
        "step_id": step_id,
        "begin_ns": begin * MS,
        "planned_ns": begin * MS,
        "launched_ns": begin * MS,
        "forward_ns": begin * MS,
        "sample_ns": end * MS,
        "collected_ns": end * MS,
        "committed_ns": end * MS,
        "rows": tuple(rows),
        "skips": skips,
        "preempted": (),
        "budget_tokens": 512,
        "running": len(rows),
        "waiting": 0,
        "waiting_tokens": 0,
        "blocks_used": 1,
        "blocks_cached": 0,
        "blocks_total": 10,
        **f,
    }
    return StepRecorded(**values)
