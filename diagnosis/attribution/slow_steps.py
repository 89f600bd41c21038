"""Slow steps and pauses of the engine, and their cause by what the host says.

Evidence in order: throttling by a quota, a wait for a CPU, a garbage collection; and where the host
says nothing, which terms of the cost are slow (all: the clock; those that read memory: bandwidth).
"""

from __future__ import annotations

from math import exp

import numpy as np

from diagnosis.attribution.charges import EngineTime, charge_rows
from diagnosis.attribution.device_evidence import device_cause
from diagnosis.attribution.thresholds import (
    ALIKE,
    LASTING_LOSS_S,
    LASTING_S,
    LEAST_ENGINE_SHARE,
    LEAST_PROMPTS,
    LEAST_STEPS,
    MOST,
    SLOW,
    SLOW_AFTER_RESTART,
    SLOW_ANYWHERE,
    SLOWER_THAN_USUAL,
    STALLED,
    THROTTLED,
)
from diagnosis.detection.counts import BUCKET_NS
from diagnosis.detection.reference import Reference
from diagnosis.detection.step_cost import Cost
from diagnosis.detection.steps import Steps
from diagnosis.detection.tail_thresholds import (
    COMES_AND_GOES,
    LEAST_STALL_NS,
    MOST_STALLS,
    RARE_STALLS,
    SLOW_RATIO,
    STALL_RATIO,
    STALLS_PER_S,
)
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Symptom

S, M = Symptom, Measurement


def least_slow(window: Window, reference: Reference) -> float:
    """How many times as long as predicted forward passes must be to be slow. A new process of the
    same engine has its memory elsewhere, and other kernels where its limits are others."""
    learnt, now = reference.started, window.started
    if learnt is None or now is None or (learnt.pid, learnt.at_ns) == (now.pid, now.at_ns):
        return SLOW
    return SLOW_AFTER_RESTART


def residual_ns(found: EngineTime, steps: Steps, cost: Cost, least: float) -> np.ndarray:
    """(steps,) ns of each forward pass beyond its predicted length; zeros if the machine is not
    slow. A step out of range is taken to be as slow as those in range that did not stand still."""
    predicted, known = cost.forward_ns(steps), cost.in_range(steps)
    residual = np.where(known, steps.forward_ns - predicted, 0.0)
    predicted_ns = float(predicted[known].sum())
    if known.sum() < LEAST_STEPS or not predicted_ns:
        return residual
    found.slow = float(steps.forward_ns[known].sum()) / predicted_ns
    found.facts[M.SLOW_FACTOR] = found.slow
    if found.slow < least:
        return np.zeros(len(steps))
    stood = _rare_stalls(steps, cost)
    ran = known & ~stood
    slow = float(steps.forward_ns[ran].sum()) / max(1.0, float(predicted[ran].sum()))
    unknown = steps.forward_ns * (1 - 1 / max(1.0, slow))
    return np.where(known | stood, steps.forward_ns - predicted, unknown)


def charge_slowness(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, residual: np.ndarray
) -> None:
    """Slow forward passes and pauses around them, by what the host samples say of the thread:
    throttled by a quota, waiting for a CPU, in a garbage collection, or none of these."""
    steps = window.steps
    around = steps.host_ns - cost.host_ns(steps)
    slow_ns, paused_ns = max(0.0, float(residual.sum())), max(0.0, float(around.sum()))
    found.facts |= {M.SLOW: slow_ns / 1e6, M.HOST: paused_ns / 1e6}
    host, sampled = window.host, window.host.is_measured
    waited_ns, lost_ns = _off_cpu(window, reference)
    found.facts |= {
        M.RUN_DELAY: waited_ns / 1e6 if sampled else None,
        M.NOT_RUNNING: lost_ns / 1e6 if sampled else None,
        M.THROTTLED: host.throttled_ns / 1e6 if host.quota_window_ns else None,
    }
    total_ns = slow_ns + paused_ns
    if waited_ns >= max(total_ns, LEAST_ENGINE_SHARE * found.busy_ns) and _mostly_out_of_range(
        steps, cost
    ):
        by_quota = host.throttled_ns >= THROTTLED * waited_ns
        cause = S.THROTTLED if by_quota else S.CPU_STARVATION
        charge_rows(found, cause, steps, steps.turn_ns * waited_ns / found.busy_ns)
        return
    if total_ns < LEAST_ENGINE_SHARE * found.busy_ns:
        return
    if host.throttled_ns >= THROTTLED * total_ns:
        charge_rows(found, S.THROTTLED, steps, residual + around)
        return
    if waited_ns >= MOST * total_ns:
        charge_rows(found, S.CPU_STARVATION, steps, residual + around)
        return
    by_device = device_cause(found, window, reference, total_ns)
    if by_device is not None:
        charge_rows(found, by_device, steps, residual + around)
        return
    collected_ns = float(window.counts.pauses["engine", "gc"])
    if collected_ns >= MOST * total_ns:
        in_passes = min(1.0, max(0.0, collected_ns - paused_ns) / max(1.0, slow_ns))
        charge_rows(found, S.HOST_STALL, steps, in_passes * residual + around)
        residual, slow_ns = (1 - in_passes) * residual, (1 - in_passes) * slow_ns
        if slow_ns < LEAST_ENGINE_SHARE * found.busy_ns:
            return
    else:
        stood = _rare_stalls(steps, cost)
        if stood.any():
            charge_rows(found, S.HOST_STALL, steps, np.where(stood, residual, 0.0) + around)
            return
        charge_rows(
            found, S.HOST_STALL if paused_ns > STALLED * slow_ns else S.THROTTLED, steps, around
        )
    did_not_run = lost_ns - paused_ns > MOST * slow_ns
    if did_not_run and found.slow >= _slower_than_usual(reference):
        charge_rows(found, S.THROTTLED, steps, residual)
        return
    slow_cause = _slow_cause(found, window, reference, cost)
    if slow_cause is not None:
        charge_rows(found, slow_cause, steps, residual)


def _rare_stalls(steps: Steps, cost: Cost) -> np.ndarray:
    """(steps,) bool: the few passes in which the engine stood still. None of them where these do
    not have most of the slow time, or are so many that the processor runs less. Where a step has
    more rows than any in the baseline its predicted length is a guess, but one that stood still is
    far longer than its like."""
    predicted = np.maximum(cost.forward_ns(steps), 0.0)
    lost = steps.forward_ns - predicted
    stood: np.ndarray = lost > np.maximum(LEAST_STALL_NS, STALL_RATIO * predicted)
    is_most = float(lost[stood].sum()) >= MOST * max(1.0, float(lost.sum()))
    busy_s = float(steps.turn_ns.sum()) / 1e9
    few = min(STALLS_PER_S * busy_s, MOST_STALLS * len(steps))
    is_rare = stood.sum() <= max(RARE_STALLS * len(steps), few)
    return stood if is_most and is_rare else np.zeros(len(steps), bool)


def _mostly_out_of_range(steps: Steps, cost: Cost) -> bool:
    """Whether most of the time went to steps out of range, whose cost cannot be predicted: then the
    host samples alone say how much was lost."""
    known_ns = float(steps.turn_ns[cost.in_range(steps)].sum())
    return known_ns < MOST * float(steps.turn_ns.sum())


def _off_cpu(window: Window, reference: Reference) -> tuple[float, float]:
    """The time off the CPU of the engine's thread beyond the baseline, scaled to the whole window:
    ns ready without a CPU, and ns neither running nor ready while there was work."""
    host = window.host
    if not host.window_ns:
        return 0.0, 0.0
    scale = window.seconds * 1e9 / host.window_ns
    waited_ns = host.wait_ns - reference.engine_wait_share * host.busy_ns
    lost_ns = host.lost_ns - reference.engine_lost_share * host.busy_ns
    return max(0.0, waited_ns) * scale, max(0.0, lost_ns) * scale


def off_cpu_symptom(window: Window, reference: Reference, cost: Cost) -> Symptom | None:
    """What the host samples say of the steps that are slow now and then: the engine's thread waited
    for a CPU, or did not run. None: it ran, or nothing was measured."""
    over = window.steps.forward_ns - np.maximum(cost.forward_ns(window.steps), 0.0)
    is_slow = over > SLOW_RATIO * (window.steps.forward_ns - over)
    slow_ns = float(over[is_slow].sum())
    waited_ns, lost_ns = _off_cpu(window, reference)
    if not slow_ns or max(waited_ns, lost_ns) <= MOST * slow_ns:
        return None
    return S.CPU_STARVATION if waited_ns > lost_ns else S.THROTTLED


def _slow_cause(
    found: EngineTime, window: Window, reference: Reference, cost: Cost
) -> Symptom | None:
    """THROTTLED or MEMORY_BANDWIDTH without a host measurement: a throttled processor slows all
    terms of the cost alike; contended memory slows what reads memory and hardly what computes. The
    slowness must be beyond what the machine does by itself, and have lasted and go on, a small one
    longer than a large one, since shared machines are slow for short times without a fault."""
    if found.slow < _slower_than_usual(reference) or not _lasted(window, found.slow):
        return None
    if not _goes_on(window, cost):
        return None
    decode, prompt = slow_by_kind(window.steps, cost)
    found.facts |= {M.SLOW_DECODES: decode, M.SLOW_PROMPTS: prompt}
    alike = prompt - 1 > ALIKE * (decode - 1)
    return S.THROTTLED if alike else S.MEMORY_BANDWIDTH


def _slower_than_usual(reference: Reference) -> float:
    """The slow factor that the machine does not reach without a fault."""
    return min(SLOW_ANYWHERE, exp(SLOWER_THAN_USUAL * reference.speed_spread))


def _lasted(window: Window, slow: float) -> bool:
    """Whether steps that took `slow` times as long as predicted did so for long enough, and lost
    as much: of the time in which there were any."""
    busy_s = float(window.steps.turn_ns.sum()) / 1e9
    return window.seconds >= LASTING_S and busy_s * (slow - 1) >= LASTING_LOSS_S


def _goes_on(window: Window, cost: Cost) -> bool:
    """Whether the later half of the window is still slow; True where too few steps tell."""
    steps = window.steps
    half_ns = window.seconds * 1e9 / 2
    later = cost.in_range(steps) & (steps.end_ns > steps.end_ns.max() - half_ns)
    if later.sum() < LEAST_STEPS:
        return True
    predicted = float(cost.forward_ns(steps)[later].sum())
    return float(steps.forward_ns[later].sum()) >= SLOW * predicted


def slow_by_kind(steps: Steps, cost: Cost) -> tuple[float, float]:
    """How many times longer than predicted in the ticks that were slow: steps that only decode, and
    what prompts add; 1 where too few tell."""
    steps = _slow_ticks(steps, cost)
    known, predicted = cost.in_range(steps), cost.forward_ns(steps)
    plain = known & (steps.prompt_tokens == 0)
    mixed = known & (steps.prompt_tokens > 0)
    if not plain.any():
        return 1.0, 1.0
    decode = float(steps.forward_ns[plain].sum() / predicted[plain].sum())
    prompts = cost.prompt_forward_ns(steps)[mixed]
    if prompts.sum() < LEAST_PROMPTS * predicted[plain].sum():
        return decode, 1.0
    rest = (steps.forward_ns[mixed] - decode * (predicted[mixed] - prompts)).sum()
    return decode, float(rest / max(1.0, prompts.sum()))


def _slow_ticks(steps: Steps, cost: Cost) -> Steps:
    """The steps of the ticks that were at least half as slow as the slowest, since a slowness that
    comes and goes would be mixed with the time between; all steps where most ticks were slow."""
    known = cost.in_range(steps)
    if not known.any():
        return steps
    ticks = (steps.end_ns // BUCKET_NS).astype(int)
    ticks -= ticks.min()
    spent = np.bincount(ticks[known], steps.forward_ns[known], ticks.max() + 1)
    predicted = np.bincount(ticks[known], cost.forward_ns(steps)[known], ticks.max() + 1)
    busy = predicted > 0
    ratio = np.where(busy, spent / np.maximum(predicted, 1.0), 1.0)
    if float((ratio[busy] > SLOW).mean()) > COMES_AND_GOES:
        return steps
    return Steps(steps.table[(ratio >= 1 + MOST * (float(ratio.max()) - 1))[ticks]])
