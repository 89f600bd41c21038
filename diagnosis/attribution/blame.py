"""Blame: requests' time beyond the baseline, charged to causes.

The excess is known by stage. It is charged in two ways. What happens within a step (a slow pass, a
pause, a mask, another request's prompt) delays every row of the step, so it is charged for each of
them. Of the queue's time, waits for blocks, clients, grammars and adapters have their cause in
their wait reason; the rest is charged to whatever took the engine's time beyond its share in the
baseline, in proportion, since that makes a queue.

The charges add up to the excess, so causes can be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from diagnosis.attribution.charges import Blame as Blame
from diagnosis.attribution.charges import Charges, EngineTime, shares_of
from diagnosis.attribution.engine_time import caused_share, engine_time, queue_contributors
from diagnosis.attribution.first_links import charge_first_links, of_a_wave
from diagnosis.attribution.queue import take_queue
from diagnosis.attribution.thresholds import CHURN_LOADS, INGEST_WORK, RECOMPUTED
from diagnosis.detection.counts import Stage
from diagnosis.detection.excess import excess_ns, stage_stats
from diagnosis.detection.reference import Reference
from diagnosis.detection.step_cost import fit_cost
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Symptom
from telemetry.facts.reasons import WaitReason

S, M = Symptom, Measurement

_OWN_REASONS = {
    WaitReason.GRAMMAR: S.GRAMMAR_COST,
    WaitReason.ADAPTER: S.ADAPTER_CHURN,
    WaitReason.CLIENT_PAUSE: S.SLOW_CLIENT,
}
_WAITS = {reason: M.named(f"wait_{reason.value}") for reason in WaitReason}


def blame(window: Window, reference: Reference) -> Blame:
    """Charge the window's excess."""
    stats = stage_stats(window.counts)
    excess = excess_ns(stats, reference)
    stages = {stage: max(0.0, excess[stage]) for stage in Stage}
    baseline_ns = {stage: stats.live_ns[stage] - excess[stage] for stage in Stage}
    cost = reference.cost or fit_cost(window.steps)
    engine = None
    if cost is not None and len(window.steps):
        engine = engine_time(window, reference, cost)
    found = Blame(window.seconds, sum(stages.values()), baseline_ns, Charges(), stages, engine)
    usual_ns = reference.stopped * window.seconds * 1e9
    found.preempted_ns = max(0.0, window.counts.skipped_ns[WaitReason.PREEMPTED] - usual_ns)
    if engine is not None:
        found.tenant = engine.tenant
        found.facts |= engine.facts
    gateway = _gateway(found, window, reference)
    _ingest(found, gateway)
    scale = _charge(found, _in_decode(found, window), stages[Stage.DECODE])
    if engine is not None:
        _take_beside(found, engine, scale)
    charged_ns = sum(found.harm_ns.values())
    _first(found, window, reference, gateway)
    first_ns = stages[Stage.FIRST] - (sum(found.harm_ns.values()) - charged_ns)
    _deliver(found, window, gateway)
    charge_first_links(found, window, reference)
    queued_ns = max(0.0, min(first_ns, sum(window.counts.waited_ns.values())))
    fuller_ns = 0.0 if engine is None else min(engine.fuller_ns, stages[Stage.DECODE])
    found.load_ns = fuller_ns + queued_ns + found.harm_ns[S.QUEUE_OVERLOAD]
    return found


def _take_beside(found: Blame, engine: EngineTime, scale: float) -> None:
    """Prompts that are computed again, or that became longer, make tokens late that are decoded in
    the same steps."""
    for symptom in (S.PREFIX_CACHE_COLD, S.LONG_PROMPTS):
        if engine.beside_ns[symptom] > 0:
            found.through[symptom, S.PREFILL_INTERFERENCE] = scale * engine.beside_ns[symptom]


def _charge(found: Blame, parts: Mapping[Symptom, float], spent_ns: float) -> float:
    """Charge each part; where they add up to more than `spent_ns`, in proportion. Returns what is
    charged of each."""
    total = sum(ns for ns in parts.values() if ns > 0)
    scale = min(1.0, spent_ns / total) if total else 0.0
    for symptom, part in parts.items():
        found.harm_ns[symptom] += scale * max(0.0, part)
    return scale


def _share(found: Blame, shares: Mapping[Symptom, float], spent_ns: float) -> None:
    for symptom, share in shares.items():
        found.harm_ns[symptom] += share * spent_ns


def _gateway(found: Blame, window: Window, reference: Reference) -> Charges:
    """What delayed the gateway: ingest work, or pauses of its process."""
    counts = window.counts
    stood = Charges()
    for (process, cause), lost_ns in counts.pauses.items():
        if process == "gateway":
            starved = cause == "off_cpu"
            stood[S.CPU_STARVATION if starved else S.HOST_STALL] += lost_ns
    work_ns = counts.ingest_work_ns - reference.ingest_work_ns * counts.accepted
    found.facts[M.INGEST_WORK] = work_ns / 1e6
    found.facts[M.GATEWAY_STOOD] = sum(stood.values()) / 1e6
    if work_ns > INGEST_WORK * sum(stood.values()):
        return Charges({S.INGEST_BACKLOG: max(1.0, *stood.values(), work_ns)})
    return stood


def _ingest(found: Blame, gateway: Charges) -> None:
    spent_ns = found.stages_ns[Stage.INGEST]
    found.facts[M.INGEST] = spent_ns / 1e6
    _share(found, _held_up(gateway), spent_ns)


def _held_up(gateway: Charges) -> Charges:
    """Shares of what delayed requests in the gateway."""
    return shares_of(gateway) or Charges({S.INGEST_BACKLOG: 1.0})


def _deliver(found: Blame, window: Window, gateway: Charges) -> None:
    """After the engine: a client that does not read, unless the gateway paused."""
    spent_ns = found.stages_ns[Stage.DELIVER]
    found.facts[M.DELIVER] = spent_ns / 1e6
    late_ns = min(spent_ns, sum(gateway.values()) * max(1, window.counts.delivered))
    _share(found, shares_of(gateway), late_ns)
    found.harm_ns[S.SLOW_CLIENT] += spent_ns - late_ns


def _in_decode(found: Blame, window: Window) -> Charges:
    """Decoding requests' time in steps and without a row, by cause."""
    parts = Charges()
    for reason, spent_ns in window.counts.skipped_ns.items():
        cause = _OWN_REASONS.get(reason)
        if reason in (
            WaitReason.KV,
            WaitReason.PREEMPTED,
        ):  # a running sequence that needs one more block
            cause = _lost_blocks(window)
        if cause is not None:
            parts[cause] += spent_ns
    if found.engine is not None:
        for symptom, spent in found.engine.decoding_ns.items():
            parts[symptom] += spent
    return parts


def _first(found: Blame, window: Window, reference: Reference, gateway: Charges) -> None:
    """Before the first token: in the queue, and in the steps that compute the prompt."""
    waited_ns = float(sum(window.counts.waited_ns.values()))
    spent_ns = found.stages_ns[Stage.FIRST]
    running_ns = 0.0
    if found.engine is not None:
        running_ns = found.engine.prompting_total_ns
    share = waited_ns / (waited_ns + running_ns) if waited_ns + running_ns else 1.0
    _take_waits(found, window)
    for effect, shares in _waits(found, window, reference, gateway).items():
        _share(found, shares, share * spent_ns)
        for symptom, part in shares.items():
            if symptom is not effect and part > 0:
                before_ns = found.through.get((symptom, effect), 0.0)
                found.through[symptom, effect] = before_ns + part * share * spent_ns
    if found.engine is not None:
        _charge(found, found.engine.prompting_ns, (1 - share) * spent_ns)


def _take_waits(found: Blame, window: Window) -> None:
    """Waits are seen in steps: without one they are not measured."""
    if not len(window.steps):
        return
    waited_ns = window.counts.waited_ns
    found.facts[M.WAITED] = sum(waited_ns.values()) / 1e6
    take_queue(found, window)
    counts = window.counts
    if counts.adapter_loads:
        found.facts[M.ADAPTER_LOADS] = counts.adapter_loads
        found.facts[M.ADAPTER_EVICTIONS] = counts.adapter_evictions
    if counts.adapter_reads:
        found.facts[M.ADAPTER_READ] = counts.adapter_read_ns / counts.adapter_reads / 1e6
    found.facts |= {measured: waited_ns[reason] / 1e6 for reason, measured in _WAITS.items()}
    found.facts[M.WAIT_PREEMPTED] = counts.preempted_ns / 1e6
    if window.steps.prompt_tokens.any():
        found.facts[M.RECOMPUTE_SHARE] = _recomputed_share(window)


def _waits(
    found: Blame, window: Window, reference: Reference, gateway: Charges
) -> dict[Symptom, Charges]:
    """Shares of the queue's time by cause, for each effect: what the head of the queue waits for.
    Those behind a head that waits for its own grammar, adapter or client are a queue. A few loads
    of adapters are first loads. A wave is due to what held it up in the gateway, however fast the
    engine is."""
    wave, held_up = of_a_wave(found, window, reference), _held_up(gateway)
    parts: dict[Symptom, Charges] = defaultdict(Charges)
    contributors = Charges() if found.engine is None else _shares_of_queue(found.engine)
    for reason, spent_ns in window.counts.waited_ns.items():
        cause = _OWN_REASONS.get(reason)
        if cause is S.ADAPTER_CHURN and window.counts.adapter_loads < CHURN_LOADS:
            continue
        if cause is not None:
            behind_ns = window.counts.behind_ns[reason]
            parts[cause][cause] += spent_ns - behind_ns
            parts[S.QUEUE_OVERLOAD][cause] += behind_ns
        elif reason is WaitReason.PREEMPTED:
            lost = _lost_blocks(window)
            parts[lost][lost] += spent_ns
        elif reason is WaitReason.KV:
            for symptom, share in _block_holders(found, window, reference).items():
                parts[S.KV_EXHAUSTION][symptom] += share * spent_ns
        else:
            causes = (
                _slot_holders(window, contributors) if reason is WaitReason.SEQS else contributors
            )
            for symptom, share in causes.items():
                parts[S.QUEUE_OVERLOAD][symptom] += (1 - wave) * share * spent_ns
            for symptom, share in held_up.items() if wave and spent_ns else ():
                parts[S.QUEUE_OVERLOAD][symptom] += wave * share * spent_ns
    total_ns = sum(window.counts.waited_ns.values())
    return {
        effect: Charges({symptom: ns / total_ns for symptom, ns in causes.items()})
        for effect, causes in parts.items()
    }


def _shares_of_queue(engine: EngineTime) -> Charges:
    """Shares of what makes the queue; they add up to less than 1 where chance makes a part."""
    contributors = queue_contributors(engine)
    part = caused_share(engine, contributors)
    return Charges({one: part * share for one, share in shares_of(contributors).items()})


def _lost_blocks(window: Window) -> Symptom:
    """The cause of running requests' waits for blocks: thrashing, or only too few blocks. Before
    any prompt is computed, those that were preempted are to be computed again."""
    if not window.steps.prompt_tokens.any():
        thrashes = window.counts.preempted_ns > 0
    else:
        thrashes = _recomputed_share(window) >= RECOMPUTED
    return S.KV_THRASH if thrashes else S.KV_EXHAUSTION


def _recomputed_share(window: Window) -> float:
    """The recomputed part of the computed prompt tokens."""
    computed = float(window.steps.prompt_tokens.sum())
    return float(window.steps.recompute_tokens.sum()) / computed if computed else 0.0


def _slot_holders(window: Window, contributors: Charges) -> Charges:
    """Shares of the slots: of paused clients, of disconnected clients, and the rest."""
    steps = window.steps
    running = float((steps.running * steps.turn_ns).sum())
    if not running:
        return contributors
    paused = float((steps.paused * steps.turn_ns).sum()) / running
    zombies = float((steps.zombie_rows * steps.turn_ns).sum()) / running
    rest = max(0.0, 1 - paused - zombies)
    parts = Charges({S.SLOW_CLIENT: paused, S.CANCELLATION_LEAK: zombies})
    for symptom, share in contributors.items():
        parts[symptom] += rest * share
    return parts


def _block_holders(found: Blame, window: Window, reference: Reference) -> Charges:
    """Shares of the waits for blocks: of disconnected clients; of growth in demand, if there are no
    fewer blocks than in the baseline; else of too few blocks, or of thrashing where more time is
    lost to preemption than to waiting."""
    steps, waited = window.steps, window.counts.waited_ns
    rows = float(steps.rows.sum())
    zombies = float(steps.zombie_rows.sum()) / rows if rows else 0.0
    thrashes = window.counts.preempted_ns > waited[WaitReason.KV]
    cause = _lost_blocks(window) if thrashes else S.KV_EXHAUSTION
    parts = Charges({S.CANCELLATION_LEAK: zombies, cause: 1 - zombies})
    engine = found.engine
    if engine is not None and engine.demand_share > 0:
        before, now = reference.started, window.started
        fewer = before is not None and now is not None and now.blocks_total < before.blocks_total
        part = (engine.demand_share if fewer else 1.0) * parts[cause]
        parts[cause] -= part
        parts[engine.demand] += part
    return parts
