"""When a request has to start to get its first token in time.

The least slack goes first (Mok, 1983; SLOs-Serve, Chen et al., 2025, plans by the slack of each
request too), in this order:

    in time   can meet its first-token target: by the latest moment at which it can start
    late      cannot: behind all that are in time, by its deadline at twice, then four times the
              target after it was accepted
    overdue   has missed these too: first in every second step, by arrival, and behind all that are
              in time in the others; while one with a tighter target waits, behind late ones of that

So a late request makes no other one late, and one that has waited for four of its targets has half
of the steps. Not all: where more comes than can be served, every request would be overdue in the
end, and none in time. One without a target is due when it has aged. A preempted one is due at once:
its reader waits in the middle of a text, or its prompt was begun.
"""

from __future__ import annotations

from math import inf

from service.engine.sequences.request import Request

DEADLINES = (1, 2, 4)  # targets after it was accepted
_BEHIND_NS = float(1 << 62)  # more than any moment


def work_ns(request: Request, token_ns: float) -> float:
    """The time that the rest of its prompt takes, at `token_ns` a token."""
    if request.in_prefill:
        return token_ns * (request.prefill_tokens - request.computed_tokens)
    return token_ns * request.known_tokens


def is_late(request: Request, now_ns: int, token_ns: float) -> bool:
    """Whether it cannot meet its first-token target any more; a preempted one is not judged."""
    by_ns = None if request.preemptions else request.submit.first_token_by_ns
    return by_ns is not None and now_ns + work_ns(request, token_ns) > by_ns


def is_overdue(request: Request, now_ns: int, token_ns: float) -> bool:
    """Whether it cannot meet the last of its deadlines any more."""
    by_ns = None if request.preemptions else request.submit.first_token_by_ns
    if by_ns is None:
        return False
    last_ns = by_ns + (DEADLINES[-1] - 1) * _target_ns(request)
    return now_ns + work_ns(request, token_ns) > last_ns


def start_by_ns(
    request: Request,
    now_ns: int,
    token_ns: float,
    ageing_ns: int,
    tighter_ns: int = 0,
    overdue_first: bool = True,
) -> float:
    """The key by which prompts are ordered: of one in time the latest moment at which it may start,
    monotonic. `tighter_ns` is the longest target below its own among those who wait, 0 without one:
    late with that target, nobody's last deadline is further away than the last of `DEADLINES`.
    `overdue_first`: in this step they are."""
    if request.preemptions:
        return -inf
    work = work_ns(request, token_ns)
    by_ns = request.submit.first_token_by_ns
    if by_ns is None:
        return request.queued_ns + ageing_ns - work
    target_ns = _target_ns(request)
    accepted_ns = by_ns - target_ns
    for times in DEADLINES:
        start_ns = accepted_ns + times * target_ns - work
        if start_ns >= now_ns:
            return start_ns if times == 1 else start_ns + _BEHIND_NS
    if tighter_ns:
        return _BEHIND_NS + now_ns + DEADLINES[-1] * tighter_ns
    return accepted_ns if overdue_first else _BEHIND_NS + accepted_ns


def _target_ns(request: Request) -> int:
    return max(1, request.submit.ttft_target_ns or 1)
