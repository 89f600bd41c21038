"""Causes of causes: harm that is charged to an effect moves to what the record shows behind it.

    blocks held for slow clients, or for those that have gone   -> kv_exhaustion -> kv_thrash
    blocks computed again for slow clients                      -> kv_exhaustion -> kv_thrash
    longer prompts or answers, which need more blocks           -> kv_exhaustion -> kv_thrash
    ingest work on the event loop                               -> host_stall
    requests held up in the gateway, which then come at once    -> queue_overload

Each needs its own measurement. The routes are kept (`Blame.through`), so that a finding can say by
way of what its harm came.
"""

from __future__ import annotations

from collections.abc import Sequence

from diagnosis.attribution.chain_thresholds import (
    HELD_BEFORE,
    HELD_SHARE,
    LEAST_HELD_BEFORE_NS,
    ON_THE_LOOP,
    RECOMPUTED_FOR_SLOW,
    WAVE_SHARE,
)
from diagnosis.attribution.charges import Blame, Charges, shares_of
from diagnosis.attribution.thresholds import INGEST_WORK
from diagnosis.detection.counts import Stage
from diagnosis.detection.reference import Reference
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement, Taken
from diagnosis.symptoms import Symptom

S, M = Symptom, Measurement


def charge_first_links(found: Blame, window: Window, reference: Reference) -> None:
    """Move harm to the first links that are proven."""
    found.facts |= held_facts(window)
    _blocks(found, window, reference)
    _loop(found, window, reference)


def held_facts(window: Window) -> Taken:
    """Who holds the blocks while somebody waits for some; None where nobody does."""
    steps = window.steps
    short = steps.short > 0 if len(steps) else None
    if short is None or not short.any():
        return {
            M.SLOW_BLOCKS_SHARE: None,
            M.ZOMBIE_BLOCKS_SHARE: None,
            M.SLOW_RECOMPUTE_SHARE: None,
        }
    total = max(1.0, float((steps.blocks_total * steps.turn_ns)[short].sum()))
    recomputed = float(steps.recompute_tokens.sum())
    slow = float(steps.slow_recompute_tokens.sum())
    return {
        M.SLOW_BLOCKS_SHARE: min(
            1.0, float((steps.slow_blocks * steps.turn_ns)[short].sum()) / total
        ),
        M.ZOMBIE_BLOCKS_SHARE: min(
            1.0, float((steps.zombie_blocks * steps.turn_ns)[short].sum()) / total
        ),
        M.SLOW_RECOMPUTE_SHARE: slow / recomputed if recomputed else None,
    }


def block_holders(taken: Taken) -> Charges:
    """Shares of those who are why blocks are short; empty where nobody holds enough of them."""
    slow, zombies = taken[M.SLOW_BLOCKS_SHARE] or 0.0, taken[M.ZOMBIE_BLOCKS_SHARE] or 0.0
    for_slow = (taken[M.SLOW_RECOMPUTE_SHARE] or 0.0) >= RECOMPUTED_FOR_SLOW
    if slow + zombies >= HELD_SHARE:
        return shares_of({S.SLOW_CLIENT: slow, S.CANCELLATION_LEAK: zombies})
    return Charges({S.SLOW_CLIENT: 1.0}) if for_slow else Charges()


def _blocks(found: Blame, window: Window, reference: Reference) -> None:
    before, now = reference.started, window.started
    if before is not None and now is not None and now.blocks_total < before.blocks_total:
        return  # there are fewer, whoever holds them
    holders = block_holders({one: found.facts[one] for one in held_facts(window)})
    holders = holders or _more_demand(found, window)
    for effect in (S.KV_EXHAUSTION, S.KV_THRASH) if holders else ():
        moved_ns = found.harm_ns.pop(effect, 0.0)
        for symptom, share in holders.items():
            found.harm_ns[symptom] += share * moved_ns
            _add(found, symptom, effect, share * moved_ns)
    beside_ns = found.harm_ns.get(S.PREFILL_INTERFERENCE, 0.0)
    if S.LONG_PROMPTS in holders and 0 < beside_ns < found.harm_ns[S.LONG_PROMPTS]:
        # long prompts are one cause, named by who loses more: their neighbours, or all others
        del found.harm_ns[S.PREFILL_INTERFERENCE]
        found.harm_ns[S.LONG_PROMPTS] += beside_ns
        _add(found, S.LONG_PROMPTS, S.PREFILL_INTERFERENCE, beside_ns)


def _more_demand(found: Blame, window: Window) -> Charges:
    """More requests, longer prompts or longer answers, which fill the blocks that were enough."""
    engine, counts = found.engine, window.counts
    if engine is None:
        return Charges()
    asked = sum(counts.prompt_lengths) + counts.requests * counts.output_tokens
    named = Charges({engine.demand: engine.demand_share * asked})
    for symptom, tokens in engine.longer.items():
        named[S.QUEUE_OVERLOAD if symptom is S.QUEUE_OVERLOAD else S.LONG_PROMPTS] += tokens
    return shares_of({one: more for one, more in named.items() if more >= HELD_SHARE * asked})


def _loop(found: Blame, window: Window, reference: Reference) -> None:
    """The event loop stood while it parsed and encoded: whatever waited for the loop was late by
    way of that."""
    harm_ns = found.harm_ns[S.INGEST_BACKLOG]
    if harm_ns > 0 and is_on_the_loop(window, reference)[0]:
        _add(found, S.INGEST_BACKLOG, S.HOST_STALL, harm_ns)


def is_on_the_loop(window: Window, reference: Reference) -> tuple[bool, Taken]:
    """Whether it was the ingest work that blocked the gateway's event loop."""
    counts = window.counts
    blocked_ns = float(counts.pauses["gateway", "loop_blocked"])
    work_ns = counts.ingest_work_ns - reference.ingest_work_ns * counts.accepted
    taken: Taken = {M.INGEST_WORK: work_ns / 1e6, M.GATEWAY_STOOD: blocked_ns / 1e6}
    is_work = work_ns > INGEST_WORK * blocked_ns
    return bool(blocked_ns) and is_work and blocked_ns >= ON_THE_LOOP * work_ns, taken


def of_a_wave(found: Blame, window: Window, reference: Reference) -> float:
    """The share of the queue's time in which requests that the gateway had held up waited for each
    other, since they came to the engine at once; 0 where that is not proven."""
    came = window.counts.admissions
    limit_ns = max(LEAST_HELD_BEFORE_NS, HELD_BEFORE * reference.stage_ns[Stage.INGEST])
    queued_ns = sum(max(0, admitted - submitted) for _, submitted, admitted in came)
    own_ns, all_ns = wave_ns(came, limit_ns)
    found.facts[M.WAVE] = own_ns / 1e6 if came else None
    if not queued_ns or own_ns < WAVE_SHARE * queued_ns:
        return 0.0
    return all_ns / queued_ns


def wave_ns(came: Sequence[tuple[int, int, int]], limit_ns: float) -> tuple[int, int]:
    """Time in the queue of requests that were held up for longer before it, and of these with all
    that came while one of them waited."""
    own_ns = all_ns = until_ns = 0
    for begun_ns, submitted_ns, admitted_ns in sorted(came, key=lambda one: one[1]):
        queued_ns = max(0, admitted_ns - submitted_ns)
        is_held = submitted_ns - begun_ns > limit_ns
        if is_held:
            own_ns += queued_ns
        if is_held or submitted_ns < until_ns:
            all_ns += queued_ns
            until_ns = max(until_ns, admitted_ns)
    return own_ns, all_ns


def _add(found: Blame, cause: Symptom, effect: Symptom, ns: float) -> None:
    found.through[cause, effect] = found.through.get((cause, effect), 0.0) + ns
