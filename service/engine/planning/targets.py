"""Which latency target bounds a step.

Whoever decodes in a step waits for its end: the tightest inter-token target of its rows bounds
it. Whoever arrives while it runs waits for it too, and then needs a step of its own: where requests
have lately come while others were served, a share of their first-token target bounds the steps that
compute prompts.

Beside prompts of a class with more time the share is smaller, and such a request is expected for
longer: what it costs them is small, and what it saves is the whole target. Among prompts of its own
class it is expected only while requests keep coming, or a lone long prompt would be cut into more
chunks than anybody needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from service.engine.admission import Limits
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable

# a class that sent a request this long ago may send another
EXPECTED_NS, EXPECTED_BESIDE_LOOSER_NS = 30_000_000_000, 300_000_000_000
SHARE, SHARE_BESIDE_LOOSER = 1 / 2, 2 / 5
_KEPT = 16


class Bounds(NamedTuple):
    """How long the next step may take: for the sequences that decode in it, and for the prompts of
    each class, by their first-token target. What has no bound may take as long as it needs."""

    decodes_ns: int | None = None
    prompts_ns: Mapping[int | None, int] = {}

    @property
    def tightest_ns(self) -> int | None:
        bounds = list(self.prompts_ns.values())
        if self.decodes_ns is not None:
            bounds.append(self.decodes_ns)
        return min(bounds, default=None)


class Targets:
    """The first-token targets that arrived lately, and the bounds of the next step."""

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

    def of_step(self, table: SequenceTable, limits: Limits, now_ns: int) -> Bounds:
        decodes_ns = _decode_target(table.running, limits)
        if not limits.auto_budget:
            return Bounds(decodes_ns)
        prompts = {r.submit.ttft_target_ns for r in table.running if r.in_prefill}
        prompts.update(table.queue.ttft_targets)
        found = {one: self._arrival_bound(one, now_ns) for one in prompts}
        return Bounds(decodes_ns, {one: ns for one, ns in found.items() if ns is not None})

    def _arrival_bound(self, prompt_target_ns: int | None, now_ns: int) -> int | None:
        """What requests that may come leave to a prompt with this target."""
        bounds: list[int] = []
        for target_ns, seen_ns in self._seen_ns.items():
            is_looser = prompt_target_ns is None or prompt_target_ns > target_ns
            expected_ns = EXPECTED_BESIDE_LOOSER_NS if is_looser else EXPECTED_NS
            if now_ns - seen_ns <= expected_ns:
                bounds.append(int(target_ns * (SHARE_BESIDE_LOOSER if is_looser else SHARE)))
        return min(bounds, default=None)


def _decode_target(running: Sequence[Request], limits: Limits) -> int | None:
    """The tightest inter-token target of the sequences that decode; None without one."""
    decoding = [r for r in running if not r.in_prefill and not r.paused]
    if decoding and limits.itl_target_ns is not None:
        return limits.itl_target_ns
    return _tightest(r.submit.itl_target_ns for r in decoding)


def _tightest(targets_ns: Iterable[int | None]) -> int | None:
    return min((one for one in targets_ns if one is not None), default=None)
