"""Which latency target bounds a step.

Whoever decodes in a step waits for its end: the tightest inter-token target of its rows bounds it.
Whoever arrives while it runs waits for it too: where requests of a class with a tighter first-token
target than all in the batch have come lately, half that target bounds the step, because an arrival
waits for the step in flight and then needs one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.engine.admission import Limits
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable

_EXPECTED_NS = 30_000_000_000  # a class that sent a request this long ago may send another
_ARRIVAL_SHARE = 0.5
_KEPT = 16


class Targets:
    """The first-token targets that arrived lately, and the bound of the next step."""

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}

    def saw(self, ttft_target_ns: int | None, now_ns: int) -> None:
        """A request with this target has arrived."""
        if ttft_target_ns is None:
            return
        self._seen_ns.pop(ttft_target_ns, None)
        self._seen_ns[ttft_target_ns] = now_ns
        if len(self._seen_ns) > _KEPT:
            del self._seen_ns[next(iter(self._seen_ns))]

    def of_step(self, table: SequenceTable, limits: Limits, now_ns: int) -> int | None:
        """How long the next step may take; None: as long as it needs."""
        bounds = (_decode_target(table.running, limits), self._arrival_bound(table, limits, now_ns))
        return min((bound for bound in bounds if bound is not None), default=None)

    def _arrival_bound(self, table: SequenceTable, limits: Limits, now_ns: int) -> int | None:
        if not limits.auto_budget:
            return None
        since_ns = now_ns - _EXPECTED_NS
        expected = [one for one, seen_ns in self._seen_ns.items() if seen_ns >= since_ns]
        if not expected:
            return None
        tightest = min(expected)
        waiting = table.queue.tightest_ttft_ns
        present = [r.submit.ttft_target_ns or 0 for r in table.running]
        if waiting is not None:
            present.append(waiting)
        is_tighter = all(tightest < one or not one for one in present)
        return int(_ARRIVAL_SHARE * tightest) if is_tighter and present else None


def _decode_target(running: Sequence[Request], limits: Limits) -> int | None:
    """The tightest inter-token target of the sequences that decode; None without one."""
    decoding = [r.submit.itl_target_ns for r in running if not r.in_prefill and not r.paused]
    if not decoding:
        return None
    if limits.itl_target_ns is not None:
        return limits.itl_target_ns
    return min((one for one in decoding if one is not None), default=None)
