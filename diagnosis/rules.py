"""One rule a symptom: from summed harm to a finding, or None.

A rule speaks only when the harm is large in two ways: per second of the window, so that a
short queue that drains is healthy, and per victim, so that much traffic with little delay
each is healthy too. The floors are constants with their reasons. Direct harm is not a root
cause: these findings say where time went, and replay will say what would have helped.
"""

from __future__ import annotations

from diagnosis.evidence import Harm
from diagnosis.symptoms import Evidence, Finding, Symptom
from telemetry.reasons import WaitReason

# Requests' seconds lost per second. One request that always waits gives 1.0; a burst that
# drains within a tenth of the window stays below.
WAIT_FLOOR = 0.5
# A queued request that waits less than this on average is not worth waking anybody.
WAIT_EACH_FLOOR_MS = 500.0
# Decode time lost to others' prefill per second of stepping.
INTERFERENCE_FLOOR = 0.1
# A token later than this beyond the plain step is a visible stall (twice the usual chat
# target of 100 ms between tokens); bounded chunks stay below it.
STALL_FLOOR_MS = 200.0
# A mixed step must also be slow against the plain one: on slow hardware every step is long.
STALL_RATIO = 3.0
# A queue has one backlog: a reason that bound its head for less than this share of the
# waiting is a bystander of the reason that made the backlog.
WAIT_SHARE_FLOOR = 0.25
_MIN_STEPS = 5

_MS = 1e6


def queue_overload(harm: Harm) -> Finding | None:
    """More work arrives than the batch can hold: waiting bound by slots or token budget."""
    waited_ns = _sum(harm, WaitReason.SEQS, WaitReason.BUDGET)
    if not _waits(harm, waited_ns):
        return None
    return Finding(
        symptom=Symptom.QUEUE_OVERLOAD,
        confidence=_confidence(waited_ns / harm.window_ns, WAIT_FLOOR),
        claim=(
            f"requests lost {waited_ns / _MS:.0f} ms in the queue because the batch was full: "
            "demand exceeds capacity"
        ),
        harm_ms=waited_ns / _MS,
        evidence=(
            _ms("wait_seqs", harm.waiting_ns.get(WaitReason.SEQS, 0)),
            _ms("wait_budget", harm.waiting_ns.get(WaitReason.BUDGET, 0)),
            _ms("window", harm.window_ns),
            Evidence("queued", harm.queued, "sequences"),
        ),
        culprits=(),
        runbook="",
    )


def kv_exhaustion(harm: Harm) -> Finding | None:
    """The cache is too small: waiting bound by blocks, or work thrown away and done again."""
    waited_ns = _sum(harm, WaitReason.KV, WaitReason.PREEMPTED)
    lost_ns = waited_ns + harm.recompute_ns
    thrashes = harm.preempted > 0 and harm.recompute_ns > harm.busy_ns * INTERFERENCE_FLOOR
    if not _waits(harm, waited_ns) and not thrashes:
        return None
    return Finding(
        symptom=Symptom.KV_EXHAUSTION,
        confidence=_confidence(lost_ns / harm.window_ns, WAIT_FLOOR),
        claim=(
            f"requests lost {lost_ns / _MS:.0f} ms because KV cache blocks ran out "
            f"({harm.preempted} preemptions)"
        ),
        harm_ms=lost_ns / _MS,
        evidence=(
            _ms("wait_kv", harm.waiting_ns.get(WaitReason.KV, 0)),
            _ms("wait_preempted", harm.waiting_ns.get(WaitReason.PREEMPTED, 0)),
            _ms("recompute", harm.recompute_ns),
            Evidence("recompute_tokens", harm.recompute_tokens, "tokens"),
            Evidence("preemptions", harm.preempted, "sequences"),
            _ms("window", harm.window_ns),
        ),
        culprits=(),
        runbook="",
    )


def prefill_interference(harm: Harm) -> Finding | None:
    """Long prefill in the steps of others' decodes: tokens come late although all run."""
    if harm.plain_step_ns is None or harm.steps < _MIN_STEPS or not harm.busy_ns:
        return None
    rate = harm.interference_ns / harm.busy_ns
    stall_floor_ns = max(STALL_FLOOR_MS * _MS, (STALL_RATIO - 1) * harm.plain_step_ns)
    if rate < INTERFERENCE_FLOOR or harm.worst_excess_ns < stall_floor_ns:
        return None
    return Finding(
        symptom=Symptom.PREFILL_INTERFERENCE,
        confidence=_confidence(rate, INTERFERENCE_FLOOR),
        claim=(
            f"decoding requests lost {harm.interference_ns / _MS:.0f} ms to others' prefill in "
            f"their steps; the worst token was {harm.worst_excess_ns / _MS:.0f} ms late"
        ),
        harm_ms=harm.interference_ns / _MS,
        evidence=(
            _ms("co_prefill", harm.interference_ns),
            _ms("worst_token", harm.worst_excess_ns),
            _ms("plain_step", harm.plain_step_ns),
            Evidence("rows_harmed", harm.interference_rows, "rows"),
            _ms("window", harm.window_ns),
        ),
        culprits=harm.culprits,
        runbook="",
    )


RULES = (queue_overload, kv_exhaustion, prefill_interference)


def _sum(harm: Harm, *reasons: WaitReason) -> int:
    return sum(harm.waiting_ns.get(reason, 0) for reason in reasons)


def _waits(harm: Harm, waited_ns: int) -> bool:
    """Whether a wait is worth a finding: by rate, by victim, and by its share of all waiting."""
    if harm.steps < _MIN_STEPS or harm.window_ns <= 0:
        return False
    if waited_ns < WAIT_SHARE_FLOOR * sum(harm.waiting_ns.values()):
        return False
    each_ms = waited_ns / max(1, harm.queued) / _MS
    return waited_ns / harm.window_ns >= WAIT_FLOOR and each_ms >= WAIT_EACH_FLOOR_MS


def _confidence(rate: float, floor: float) -> float:
    """0.5 at the floor, towards 1 as the rate grows past it; not yet calibrated."""
    return round(rate / (rate + floor), 3)


def _ms(name: str, value_ns: int) -> Evidence:
    return Evidence(name, round(value_ns / _MS, 3), "ms")
