"""Why a sequence of vLLM's engine core ended, in our words.

A stop string is found by the front end, which then aborts the sequence in the core: the core cannot
tell it from a client that went away. The front end's own fact of the request has the truth.
"""

from __future__ import annotations

from typing import Any

from service.attach.inside.vllm_core.live import Live
from telemetry.facts.reasons import EndReason


def end_reason(live: Live, statuses: Any, is_everything: bool) -> EndReason:
    """`statuses` is vLLM's enum RequestStatus. `is_everything`: all sequences were ended at once.
    Unknown statuses are INTERNAL."""
    request = live.request
    status = request.status
    if status == statuses.FINISHED_STOPPED:
        return EndReason.EOS if request.stop_reason is None else EndReason.STOP_TOKEN
    if status == statuses.FINISHED_LENGTH_CAPPED:
        is_full = request.num_output_tokens >= request.max_tokens
        return EndReason.MAX_TOKENS if is_full else EndReason.CONTEXT
    if status == statuses.FINISHED_ABORTED:
        return EndReason.SHUTDOWN if is_everything else EndReason.DISCONNECT
    if status == statuses.FINISHED_IGNORED:
        return EndReason.CONTEXT
    if status == statuses.FINISHED_REPETITION:
        return EndReason.STOP_STRING
    return EndReason.GRAMMAR_INVALID if live.awaits_grammar else EndReason.INTERNAL
