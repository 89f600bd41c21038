"""When a request has to start to get its first token in time.

The least slack goes first (Mok, 1983; SLOs-Serve, Chen et al., 2025, plans by the slack of each
request too). A request whose target is missed would lose against every later one, so it gets its
deadline again at twice, four times, ... the target after it was accepted: it waits behind requests
that can still be served in time, but not for ever. One without a target is due when it has aged.
"""

from __future__ import annotations

from service.engine.sequences.request import Request


def work_ns(request: Request, token_ns: float) -> float:
    """The time that the rest of its prompt takes, at `token_ns` a token."""
    if request.in_prefill:
        return token_ns * (request.prefill_tokens - request.computed_tokens)
    return token_ns * request.known_tokens


def is_late(request: Request, now_ns: int, token_ns: float) -> bool:
    """Whether it cannot meet its first-token target any more."""
    by_ns = request.submit.first_token_by_ns
    return by_ns is not None and now_ns + work_ns(request, token_ns) > by_ns


def start_by_ns(request: Request, now_ns: int, token_ns: float, ageing_ns: int) -> float:
    """The latest moment at which its prompt may start, monotonic."""
    work = work_ns(request, token_ns)
    submit = request.submit
    if submit.first_token_by_ns is None:
        return request.queued_ns + ageing_ns - work
    target_ns = max(1, submit.ttft_target_ns or 1)
    accepted_ns = submit.first_token_by_ns - target_ns
    while accepted_ns + target_ns < now_ns + work:
        target_ns *= 2
    return accepted_ns + target_ns - work
