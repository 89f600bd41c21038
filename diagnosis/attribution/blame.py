"""Who holds requests up: time beyond the usual, charged to causes.

Requests' time beyond the reference's prices is known by stage. It is charged in two ways. What
happens within a step (a slow pass, a pause, a mask, another's prompt) makes everybody in it late,
so it is charged for each of them. Of the queue's time, waits for blocks, clients and grammars
have their cause in their reason; the rest is charged to whatever took the engine's time beyond
its usual share, in proportion, since that is what makes a queue.

Everything adds up to the time that requests were held up, so causes can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnosis.attribution.charges import Charges, shares_of
from diagnosis.attribution.engine_time import EngineTime, engine_time, queue_makers
from diagnosis.detection.counts import Stage
from diagnosis.detection.excess import half_of, held_up_ns
from diagnosis.detection.reference import Reference, fit_cost
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom
from telemetry.facts.reasons import WaitReason

S = Symptom

_OWN_REASONS = {
    WaitReason.GRAMMAR: S.GRAMMAR_COST,
    WaitReason.CLIENT_PAUSE: S.SLOW_CLIENT,
}
# of the prompt tokens that are computed; below that a cache is too small, and does not thrash
_COMPUTED_AGAIN = 0.25


@dataclass(slots=True)
class Blame:
    """`harm_ns` by cause, which adds up to what requests were held up, by stage,
    beyond `usual_ns`. `facts` are measurements
    behind it, times in ms. `tenant` is the one that demand grew by."""

    seconds: float
    held_up_ns: float
    usual_ns: dict[Stage, float]
    harm_ns: Charges
    stages_ns: dict[Stage, float]
    engine: EngineTime | None
    facts: dict[str, float] = field(default_factory=dict)
    tenant: str | None = None


def blame(window: Window, reference: Reference) -> Blame:
    """Charge the window's harm."""
    half = half_of(window.counts)
    excess = held_up_ns(half, reference)
    stages = {stage: max(0.0, excess[stage]) for stage in Stage}
    usual_ns = {stage: half.live_ns[stage] - excess[stage] for stage in Stage}
    cost = reference.cost or fit_cost(window.steps)
    engine = None
    if cost is not None and len(window.steps):
        engine = engine_time(window, reference, cost)
    found = Blame(window.seconds, sum(stages.values()), usual_ns, Charges(), stages, engine)
    if engine is not None:
        found.tenant = engine.tenant
        found.facts |= engine.facts
    gateway = _gateway(found, window, reference)
    _ingest(found, gateway)
    _charge(found, _in_decode(found, window), stages[Stage.DECODE])
    _first(found, window, reference)
    _deliver(found, window, gateway)
    return found


def _charge(found: Blame, parts: Mapping[Symptom, float], spent_ns: float) -> None:
    """To each its part, or, where they are more than was spent, its share."""
    total = sum(ns for ns in parts.values() if ns > 0)
    scale = min(1.0, spent_ns / total) if total else 0.0
    for symptom, part in parts.items():
        found.harm_ns[symptom] += scale * max(0.0, part)


def _share(found: Blame, shares: Mapping[Symptom, float], spent_ns: float) -> None:
    for symptom, share in shares.items():
        found.harm_ns[symptom] += share * spent_ns


def _gateway(found: Blame, window: Window, reference: Reference) -> Charges:
    """What held the gateway up: texts that take long to take in, or pauses of its own."""
    counts = window.counts
    stood = Charges()
    for (process, cause), lost_ns in counts.pauses.items():
        if process == "gateway":
            starved = cause == "off_cpu"
            stood[S.CPU_STARVATION if starved else S.HOST_STALL] += lost_ns
    work_ns = counts.ingest_work_ns - reference.ingest_work_ns * counts.accepted
    found.facts["ingest_work"] = work_ns / 1e6
    found.facts["gateway_stood"] = sum(stood.values()) / 1e6
    if work_ns > 0.5 * sum(stood.values()):
        return Charges({S.INGEST_BACKLOG: max(1.0, *stood.values(), work_ns)})
    return stood


def _ingest(found: Blame, gateway: Charges) -> None:
    spent_ns = found.stages_ns[Stage.INGEST]
    found.facts["ingest"] = spent_ns / 1e6
    _share(found, shares_of(gateway) or {S.INGEST_BACKLOG: 1.0}, spent_ns)


def _deliver(found: Blame, window: Window, gateway: Charges) -> None:
    """Behind the engine: a reader who does not read, unless the gateway did not send."""
    spent_ns = found.stages_ns[Stage.DELIVER]
    found.facts["deliver"] = spent_ns / 1e6
    late_ns = min(spent_ns, sum(gateway.values()) * max(1, window.counts.delivered))
    _share(found, shares_of(gateway), late_ns)
    found.harm_ns[S.SLOW_CLIENT] += spent_ns - late_ns


def _in_decode(found: Blame, window: Window) -> Charges:
    """Requests' time in steps and between their tokens, by cause."""
    parts = Charges()
    for reason, spent_ns in window.counts.skipped_ns.items():
        cause = _OWN_REASONS.get(reason)
        if reason in (WaitReason.KV, WaitReason.PREEMPTED):  # it ran, and wants one more block
            cause = _lost_blocks(window)
        if cause is not None:
            parts[cause] += spent_ns
    if found.engine is not None:
        for symptom, spent in found.engine.decoding_ns.items():
            parts[symptom] += spent
    return parts


def _first(found: Blame, window: Window, reference: Reference) -> None:
    """Before the first token: in the queue, and in the steps that compute the prompt."""
    waited = window.counts.waited_ns
    waited_ns = float(sum(waited.values()))
    spent_ns = found.stages_ns[Stage.FIRST]
    running_ns = 0.0
    if found.engine is not None:
        running_ns = found.engine.prompting_total_ns
    share = waited_ns / (waited_ns + running_ns) if waited_ns + running_ns else 1.0
    found.facts["waited"] = waited_ns / 1e6
    _share(found, _waits(found, window, reference), share * spent_ns)
    if found.engine is not None:
        _charge(found, found.engine.prompting_ns, (1 - share) * spent_ns)


def _waits(found: Blame, window: Window, reference: Reference) -> Charges:
    """The queue by what its head waited for."""
    parts = Charges()
    makers = Charges() if found.engine is None else shares_of(queue_makers(found.engine))
    for reason, spent_ns in window.counts.waited_ns.items():
        cause = _OWN_REASONS.get(reason)
        found.facts[f"wait_{reason.value}"] = spent_ns / 1e6
        if cause is not None:
            parts[cause] += spent_ns
        elif reason is WaitReason.PREEMPTED:
            parts[_lost_blocks(window)] += spent_ns
        elif reason is WaitReason.KV:
            for symptom, share in _block_holders(found, window, reference).items():
                parts[symptom] += share * spent_ns
        else:
            takers = _slot_holders(window, makers) if reason is WaitReason.SEQS else makers
            for symptom, share in takers.items():
                parts[symptom] += share * spent_ns
    total_ns = sum(window.counts.waited_ns.values())
    return Charges({symptom: ns / total_ns for symptom, ns in parts.items()})


def _lost_blocks(window: Window) -> Symptom:
    """What it is called that running requests wait for blocks."""
    again = _computed_again(window) >= _COMPUTED_AGAIN
    return S.KV_THRASH if again else S.KV_EXHAUSTION


def _computed_again(window: Window) -> float:
    """Of the prompt tokens that were computed, those that had been before."""
    computed = float(window.steps.prompt_tokens.sum())
    return float(window.steps.recompute_tokens.sum()) / computed if computed else 0.0


def _slot_holders(window: Window, makers: Charges) -> Charges:
    """Slots that nobody computes in: of paused readers, and of clients that have gone."""
    steps = window.steps
    running = float((steps.running * steps.turn_ns).sum())
    if not running:
        return makers
    paused = float((steps.paused * steps.turn_ns).sum()) / running
    gone = float((steps.zombie_rows * steps.turn_ns).sum()) / running
    rest = max(0.0, 1 - paused - gone)
    parts = Charges({S.SLOW_CLIENT: paused, S.CANCELLATION_LEAK: gone})
    for symptom, share in makers.items():
        parts[symptom] += rest * share
    return parts


def _block_holders(found: Blame, window: Window, reference: Reference) -> Charges:
    """Blocks are too few, unless those who hold them have gone or more requests than usual want
    them: of as many blocks as ever, those are all that is new. Where more is lost to taking them
    back than to waiting for them, that is what is wrong."""
    steps, waited = window.steps, window.counts.waited_ns
    rows = float(steps.rows.sum())
    gone = float(steps.zombie_rows.sum()) / rows if rows else 0.0
    found.facts["recompute_share"] = _computed_again(window)
    thrashes = waited[WaitReason.PREEMPTED] > waited[WaitReason.KV]
    cause = _lost_blocks(window) if thrashes else S.KV_EXHAUSTION
    parts = Charges({S.CANCELLATION_LEAK: gone, cause: 1 - gone})
    engine = found.engine
    if engine is not None and engine.demand_share > 0:
        usual, now = reference.started, window.started
        fewer = usual is not None and now is not None and now.blocks_total < usual.blocks_total
        part = (engine.demand_share if fewer else 1.0) * parts[cause]
        parts[cause] -= part
        parts[engine.demand] += part
    return parts
