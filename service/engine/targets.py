"""Which latency target bounds a step.

Whoever decodes in a step waits for its end: the tightest inter-token target of its rows bounds
it. Whoever arrives while it runs waits for it too, and then needs a step of its own: where requests
have lately come while others were served, a share of the tightest first-token target among them
bounds the steps that compute prompts. The share is smaller where prompts of a class with more time
would fill the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.engine.admission import Limits
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable

EXPECTED_NS = 300_000_000_000  # a class that sent a request this long ago may send another
SHARE = 1 / 2
SHARE_BESIDE_LOOSER = 1 / 3
_KEPT = 16


class Targets:
    """The first-token targets that arrived lately, and the bound of the next step."""

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}

    def saw(self, ttft_target_ns: int | None, now_ns: int) -> None:
        """A request with this target has arrived while others were served."""
        if ttft_target_ns is None:
            return
        self._seen_ns.pop(ttft_target_ns, None)
        self._seen_ns[ttft_target_ns] = now_ns
        if len(self._seen_ns) > _KEPT:
            del self._seen_ns[next(iter(self._seen_ns))]

    def of_step(self, table: SequenceTable, limits: Limits, now_ns: int) -> int | None:
        """How long the next step may take; None: as long as it needs."""
        bounds = [_decode_target(table.running, limits)]
        if limits.auto_budget:
            bounds.append(self._arrival_bound(table, now_ns))
        return min((bound for bound in bounds if bound is not None), default=None)

    def _arrival_bound(self, table: SequenceTable, now_ns: int) -> int | None:
        since_ns = now_ns - EXPECTED_NS
        expected = [one for one, seen_ns in self._seen_ns.items() if seen_ns >= since_ns]
        prompts = [r.submit.ttft_target_ns for r in table.running if r.in_prefill]
        prompts += table.queue.ttft_targets
        if not expected or not prompts:
            return None
        tightest = min(expected)
        beside_looser = any(one is None or one > tightest for one in prompts)
        return int(tightest * (SHARE_BESIDE_LOOSER if beside_looser else SHARE))


def _decode_target(running: Sequence[Request], limits: Limits) -> int | None:
    """The tightest inter-token target of the sequences that decode; None without one."""
    decoding = [r for r in running if not r.in_prefill and not r.paused]
    if decoding and limits.itl_target_ns is not None:
        return limits.itl_target_ns
    return _tightest(r.submit.itl_target_ns for r in decoding)


def _tightest(targets_ns: Iterable[int | None]) -> int | None:
    return min((one for one in targets_ns if one is not None), default=None)
