"""What the queue means to who comes now: how long they will wait, and whether that is in time.

In a queue that is as long as it was lately, who comes now waits for its length over the rate at
which it is served (Little, 1961). That is compared with the TTFT target of their classes. A queue
that drains in time is what queues are for, however long it is beside the baseline's.
"""

from __future__ import annotations

from diagnosis.attribution.charges import Blame
from diagnosis.attribution.thresholds import (
    IN_DANGER,
    LEAST_DEMAND_S,
    STILL_IN_DANGER,
    TIGHT_SHARE,
)
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from telemetry.facts.reasons import EndReason

M = Measurement

# for the length of the queue; a tenant's own limit turns away without one
_TURNED_AWAY = (EndReason.QUEUE_FULL, EndReason.TTFT_UNREACHABLE)


def take_queue(found: Blame, window: Window) -> None:
    """Take the expected wait of the later half of the window (of all of a short one), the tightest
    target that many have, and who was turned away."""
    counts, ended = window.counts, window.counts.ended
    if window.seconds >= LEAST_DEMAND_S:
        recent = counts if window.seconds < 2 * LEAST_DEMAND_S else window.later_half
        waited_ns = sum(recent.waited_ns.values())
        found.facts[M.EXPECTED_WAIT] = waited_ns / max(1, recent.admitted) / 1e6
    found.facts[M.TURNED_AWAY] = sum(ended[reason] for reason in _TURNED_AWAY)
    targets, so_far = counts.first_targets_ns, 0
    for target_ns in sorted(targets):
        so_far += targets[target_ns]
        if so_far >= TIGHT_SHARE * targets.total():
            found.facts[M.WAIT_TARGET] = target_ns / 1e6
            return


def is_in_danger(found: Blame, *, is_said: bool) -> bool:
    """Whether the queue keeps who comes now from a first token within the target, or turns them
    away. Once that `is_said`, less is enough."""
    if found.facts[M.TURNED_AWAY]:
        return True
    wait_ms, target_ms = found.facts[M.EXPECTED_WAIT], found.facts[M.WAIT_TARGET]
    if wait_ms is None or target_ms is None:
        return False
    return wait_ms >= (STILL_IN_DANGER if is_said else IN_DANGER) * target_ms
