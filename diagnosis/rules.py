"""One rule a symptom: from summed harm to a finding, or None.

A rule speaks only when the harm is large in two ways: per second of the window, so that a
short queue that drains is healthy, and per victim, so that much traffic with little delay
each is healthy too. The floors are constants with their reasons. Direct harm is not a root
cause: these findings say where time went, and replay will say what would have helped.
"""

from __future__ import annotations

from diagnosis.evidence import Harm
from diagnosis.runbook import runbook_name
from diagnosis.symptoms import Evidence, Finding, Symptom
from telemetry.records import WaitReason

# Requests' seconds lost per second: half a request, waiting all the time.
WAIT_FLOOR = 0.5
# A queued request that waits less than this on average is not worth waking anybody.
WAIT_EACH_FLOOR_MS = 500.0
# Decode time lost in stalls per second of stepping: one stream a tenth slower.
INTERFERENCE_FLOOR = 0.1
# Time of the engine that went into computing again what a preemption threw away.
RECOMPUTE_FLOOR = 0.1
# A token later than this beyond the plain step is a visible stall (twice the usual chat
# target of 100 ms between tokens); bounded chunks stay below it.
STALL_FLOOR_MS = 200.0
# The machine itself makes a step long now and then; prompts that do it do it again.
STALLS_FLOOR = 3
# A mixed step must also be slow against the plain one: on slow hardware every step is long.
STALL_RATIO = 3.0
# A queue has one backlog: a reason that bound its head for less than this share of the
# waiting is a bystander of the reason that made the backlog.
WAIT_SHARE_FLOOR = 0.25
# Rates are taken over no less than this: one burst after a quiet start is not a trend.
RATE_WINDOW_FLOOR_NS = 10_000_000_000
_MIN_STEPS = 5

_MS = 1e6


def queue_overload(harm: Harm) -> Finding | None:
    """More work arrives than the batch can hold: waiting bound by slots or token budget."""
    reasons = (WaitReason.SEQS, WaitReason.BUDGET)
    waited_ns = _waited_ns(harm, reasons)
    if not _waits(harm, waited_ns):
        return None
    return _finding(
        Symptom.QUEUE_OVERLOAD,
        harm,
        harm_ns=waited_ns,
        margin=_rate(harm, waited_ns) / WAIT_FLOOR,
        claim=(
            f"requests lost {waited_ns / _MS:.0f} ms in the queue because the batch was full: "
            "demand exceeds capacity"
        ),
        evidence=(
            _ms("wait_seqs", harm.waiting_ns.get(WaitReason.SEQS, 0)),
            _ms("wait_budget", harm.waiting_ns.get(WaitReason.BUDGET, 0)),
            Evidence("queued", harm.queued, "sequences"),
        ),
        victims=_waiters(harm, reasons),
    )


def kv_exhaustion(harm: Harm) -> Finding | None:
    """The cache is too small: waiting bound by blocks, or work thrown away and done again."""
    reasons = (WaitReason.KV, WaitReason.PREEMPTED)
    waited_ns = _waited_ns(harm, reasons)
    lost_ns = waited_ns + harm.recompute_ns
    thrash_floor_ns = max(harm.busy_ns, RATE_WINDOW_FLOOR_NS) * RECOMPUTE_FLOOR
    thrashes = harm.preempted > 0 and harm.recompute_ns >= thrash_floor_ns
    if not _waits(harm, waited_ns) and not thrashes:
        return None
    waits_margin = _rate(harm, waited_ns) / WAIT_FLOOR
    return _finding(
        Symptom.KV_EXHAUSTION,
        harm,
        harm_ns=lost_ns,
        margin=max(waits_margin, harm.recompute_ns / thrash_floor_ns),
        claim=(
            f"requests lost {lost_ns / _MS:.0f} ms because KV cache blocks ran out "
            f"({harm.preempted} preemptions)"
        ),
        evidence=(
            _ms("wait_kv", harm.waiting_ns.get(WaitReason.KV, 0)),
            _ms("wait_preempted", harm.waiting_ns.get(WaitReason.PREEMPTED, 0)),
            _ms("recompute", harm.recompute_ns),
            Evidence("recompute_tokens", harm.recompute_tokens, "tokens"),
            Evidence("preemptions", harm.preempted, "sequences"),
        ),
        victims=_waiters(harm, reasons) | harm.preempted_requests,
        culprits=harm.cache_holders,
    )


def prefill_interference(harm: Harm) -> Finding | None:
    """Long prefill in the steps of others' decodes: tokens come late although all run."""
    if harm.plain_step_ns is None or harm.steps < _MIN_STEPS:
        return None
    stall_floor_ns = max(STALL_FLOOR_MS * _MS, (STALL_RATIO - 1) * harm.plain_step_ns)
    stalls = [(excess_ns, rows) for excess_ns, rows in harm.excesses if excess_ns >= stall_floor_ns]
    stalled_ns = sum(excess_ns * rows for excess_ns, rows in stalls)
    rate = stalled_ns / max(harm.busy_ns, RATE_WINDOW_FLOOR_NS)
    if len(stalls) < STALLS_FLOOR or rate < INTERFERENCE_FLOOR:
        return None
    worst_ns = max(excess_ns for excess_ns, _ in stalls)
    return _finding(
        Symptom.PREFILL_INTERFERENCE,
        harm,
        harm_ns=harm.interference_ns,
        margin=rate / INTERFERENCE_FLOOR,
        claim=(
            f"decoding requests lost {harm.interference_ns / _MS:.0f} ms to others' prefill in "
            f"their steps; the worst token was {worst_ns / _MS:.0f} ms late"
        ),
        evidence=(
            _ms("co_prefill", harm.interference_ns),
            _ms("worst_token", worst_ns),
            _ms("plain_step", harm.plain_step_ns),
            Evidence("stalls", len(stalls), "steps"),
            Evidence("rows_harmed", sum(rows for _, rows in harm.excesses), "rows"),
        ),
        victims=harm.interference_victims,
        culprits=harm.interference_culprits,
    )


RULES = (queue_overload, kv_exhaustion, prefill_interference)


def confidence(margin: float, share: float) -> float:
    """Between 0 and 1, growing in both arguments; not yet calibrated.

    `margin` is the harm's rate over its floor: 1 gives 0.5, ten times gives 0.91. `share`
    is the finding's part of all harm found: a finding that explains little of what was
    lost keeps no less than half of that.
    """
    return round(margin / (margin + 1) * (1 + share) / 2, 3)


def _finding(
    symptom: Symptom,
    harm: Harm,
    *,
    harm_ns: int,
    margin: float,
    claim: str,
    evidence: tuple[Evidence, ...],
    victims: frozenset[str],
    culprits: tuple[str, ...] = (),
) -> Finding:
    share = harm_ns / harm.total_ns if harm.total_ns else 0.0
    return Finding(
        symptom=symptom,
        confidence=confidence(margin, share),
        claim=claim,
        harm_ms=harm_ns / _MS,
        evidence=(*evidence, _ms("window", harm.window_ns)),
        culprits=culprits,
        victims=len(victims),
        runbook=runbook_name(symptom),
    )


def _waited_ns(harm: Harm, reasons: tuple[WaitReason, ...]) -> int:
    return sum(harm.waiting_ns.get(reason, 0) for reason in reasons)


def _waiters(harm: Harm, reasons: tuple[WaitReason, ...]) -> frozenset[str]:
    return frozenset().union(*(harm.waiters.get(reason, frozenset()) for reason in reasons))


def _waits(harm: Harm, waited_ns: int) -> bool:
    """Whether a wait is worth a finding: by rate, by victim, and by its share of all waiting."""
    if harm.steps < _MIN_STEPS:
        return False
    if waited_ns < WAIT_SHARE_FLOOR * sum(harm.waiting_ns.values()):
        return False
    each_ms = waited_ns / max(1, harm.queued) / _MS
    return _rate(harm, waited_ns) >= WAIT_FLOOR and each_ms >= WAIT_EACH_FLOOR_MS


def _rate(harm: Harm, lost_ns: int) -> float:
    """Requests' seconds lost per second of the window."""
    return lost_ns / max(harm.window_ns, RATE_WINDOW_FLOOR_NS)


def _ms(name: str, value_ns: int) -> Evidence:
    return Evidence(name, round(value_ns / _MS, 3), "ms")
