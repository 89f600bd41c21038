"""When a sequence ends because of its tokens.

Stop strings are text and belong to the gateway, which sends a Cancel with STOP_STRING.
"""

from __future__ import annotations

from service.engine.sequences.request import Request
from telemetry.facts.reasons import EndReason


def end_after(request: Request, max_model_tokens: int) -> EndReason | None:
    """Why the request ends with its newest output; None when it goes on.

    End tokens cannot come before `min_tokens` outputs exist: the sampler masks them, unless
    a grammar leaves nothing else.
    """
    token_id = request.outputs[-1]
    submit = request.submit
    if token_id in submit.end_token_ids and (
        len(request.outputs) >= submit.min_tokens or submit.grammar is not None
    ):
        return EndReason.EOS
    if token_id in submit.stop_token_ids and len(request.outputs) >= submit.min_tokens:
        return EndReason.STOP_TOKEN
    if len(request.outputs) >= submit.max_tokens:
        return EndReason.MAX_TOKENS
    if request.known_tokens >= max_model_tokens:
        return EndReason.CONTEXT
    return None


def may_grow(request: Request, max_model_tokens: int) -> bool:
    """Whether the sequence may sample one more token, after those still in flight."""
    outputs = request.next_output_index
    if outputs >= request.submit.max_tokens:
        return False
    return len(request.submit.prompt) + outputs < max_model_tokens
