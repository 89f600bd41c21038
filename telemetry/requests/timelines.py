"""The last ended requests, by id, for `/debug/requests/{id}`.

They are kept as JSON: a timeline has a stamp for each token, and ten thousand timelines would be
most of the gateway's memory. Bounded by number and by bytes; the oldest are dropped first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.records import RequestAccepted
from telemetry.requests.account import Account
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline, SequenceTimeline

CAPACITY_BYTES = 64 * 1024 * 1024


Judge = Callable[[RequestTimeline], dict[str, Any]]
"""What else is said of an ended request, such as whether it met its SLO."""


class TimelineStore:
    """A bounded map of described timelines; a listener of the phase fold."""

    def __init__(
        self,
        capacity: int = 10_000,
        capacity_bytes: int = CAPACITY_BYTES,
        judged: Judge = lambda timeline: {},
    ) -> None:
        self._judged = judged
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._described: OrderedDict[str, bytes] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._described)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        request_id = timeline.accepted.request_id
        described = msgspec.json.encode({**describe(timeline), **self._judged(timeline)})
        self.bytes += len(described) - len(self._described.pop(request_id, b""))
        self._described[request_id] = described
        while len(self._described) > self._capacity or self.bytes > self._capacity_bytes:
            self.bytes -= len(self._described.popitem(last=False)[1])

    def get(self, request_id: str, fold: PhaseFold, now_ns: int) -> bytes | None:
        """A request, ended or live, as JSON; None if it is not known."""
        live = fold.accepted(request_id)
        if live is not None:
            return msgspec.json.encode(_running(live, now_ns))
        return self._described.get(request_id)


def _running(accepted: RequestAccepted, now_ns: int) -> dict[str, Any]:
    return {
        "request_id": accepted.request_id,
        "trace_id": accepted.trace_id,
        "outcome": "running",
        "reason": None,
        "e2e_ns": now_ns - accepted.at_ns,
        "phases": [],
    }


def describe(timeline: RequestTimeline) -> dict[str, Any]:
    """A timeline as it is shown. No prompt, output or token id: a timeline never has them."""
    accepted, ended = timeline.accepted, timeline.ended
    return {
        "request_id": accepted.request_id,
        "trace_id": accepted.trace_id,
        "outcome": timeline.outcome.value,
        "reason": ended.reason.value,
        "status": ended.status,
        "error_type": ended.error_type,
        "tenant": accepted.tenant,
        "slo_class": accepted.slo_class,
        "e2e_ns": timeline.e2e_ns,
        "ttft_ns": timeline.ttft_ns,
        "tpot_ns": timeline.tpot_ns,
        "parse_wait_ns": timeline.parsed.waited_ns if timeline.parsed else None,
        "prompt_tokens": timeline.tokenized.prompt_tokens if timeline.tokenized else None,
        "output_tokens": ended.output_tokens,
        "reasoning_tokens": ended.reasoning_tokens,
        "detokenize_busy_ns": ended.detokenize_busy_ns,
        "accepted_ns": accepted.at_ns,
        "ended_ns": ended.at_ns,
        "detected_ns": ended.detected_ns,
        "cached_tokens": timeline.cached_tokens,
        "output_valid": ended.output_valid,
        "cancellation": timeline.cancellation,
        **_describe_tools(timeline),
        "phases": [
            {"name": phase.name.value, "start_ns": phase.start_ns, "end_ns": phase.end_ns}
            for phase in timeline.phases
        ],
        "prefill": _describe_prefill(timeline),
        "sequences": [_describe_sequence(sequence) for sequence in timeline.sequences],
        **({"gateway": accepted.gateway} if accepted.gateway else {}),
        **({"incomplete": True} if timeline.is_incomplete else {}),
        **_describe_account(timeline.account),
    }


def _describe_tools(timeline: RequestTimeline) -> dict[str, Any]:
    """The calls in the answer by what became of them, and how long results took to come."""
    found: dict[str, Any] = {}
    made = timeline.tool_calls
    if made is not None:
        found["tool_calls"] = {
            **{outcome.value: count for outcome, count in made.outcomes.items()},
            "malformed": made.malformed,
            "parse_ns": made.parse_ns,
            "check_ns": made.validate_ns,
        }
    if timeline.tool_results is not None:
        found["tool_results"] = {
            "unknown": timeline.tool_results.unknown,
            "calls": [
                {
                    "request_id": one.request_id,
                    "trace_id": one.trace_id,
                    "results": one.results,
                    "waited_ns": end_ns - begin_ns,
                }
                for begin_ns, end_ns, one in timeline.tool_waits
            ],
        }
    return found


def _describe_prefill(timeline: RequestTimeline) -> dict[str, Any] | None:
    """How many chunks the prompts were computed in, and those of them in steps that a latency
    target bounded, with the tightest such target."""
    chunks = [chunk for sequence in timeline.sequences for chunk in sequence.chunks]
    targets = [chunk.target_ns for chunk in chunks if chunk.target_ns is not None]
    if not chunks:
        return None
    return {
        "chunks": len(chunks),
        "bounded_chunks": len(targets),
        "step_target_ns": min(targets, default=None),
    }


def _describe_account(account: Account | None) -> dict[str, Any]:
    """The exact ledger and the stalls."""
    if account is None:
        return {}
    ledger = account.ledger
    return {
        "ledger": {
            "sum_ns": ledger.sum_ns,
            "residue_ns": ledger.residue_ns,
            "unattributed_ns": ledger.unattributed_ns,
            "not_observed_ns": ledger.not_observed_ns,
            **({"core_only": True} if account.is_core_only else {}),
            "entries": ledger.entries,
        },
        "stalls": account.stalls,
        "stalls_cut": account.stalls_cut,
    }


def _describe_sequence(sequence: SequenceTimeline) -> dict[str, Any]:
    waits: Counter[str] = Counter()
    for wait in sequence.waits:
        waits[wait.reason.value] += wait.end_ns - wait.start_ns
    gaps = [b - a for a, b in zip(sequence.token_ns, sequence.token_ns[1:], strict=False)]
    return {
        "seq_id": sequence.seq_id,
        "choice": sequence.choice,
        "queued_ns": sequence.queued_ns,
        "scheduled_ns": sequence.scheduled_ns,
        "ended_ns": sequence.ended_ns,
        "end_reason": sequence.end_reason.value if sequence.end_reason else None,
        "output_tokens": len(sequence.token_ns),
        "itl_max_ns": max(gaps, default=None),
        "wait_ns": dict(waits),
        "cached_tokens": sequence.hit_tokens,
        "ghost_tokens": sequence.ghost_tokens,
        "grammar_compile_ns": sequence.compile_ns,
        "chunks": [
            {
                "step_id": chunk.step_id,
                "start_ns": chunk.start_ns,
                "end_ns": chunk.end_ns,
                "tokens": chunk.tokens,
                "context_tokens": chunk.context_tokens,
                "recompute_tokens": chunk.recompute_tokens,
                "step_target_ns": chunk.target_ns,
            }
            for chunk in sequence.chunks
        ],
        "preempted": [
            {"step_id": gap.step_id, "start_ns": gap.start_ns, "end_ns": gap.end_ns}
            for gap in sequence.preempted
        ],
        **({"remote": _describe_remote(sequence.remote)} if sequence.remote else {}),
    }


def _describe_remote(remote: RemoteSpan) -> dict[str, Any]:
    """Its time at a node; the parts are in the ledger. The incarnation is shown in hex: many
    readers of JSON have no integers of 64 bits."""
    shown: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(remote, parts=()))
    return shown | {"incarnation": f"{remote.incarnation:016x}"}
