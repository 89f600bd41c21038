"""Causes that have a cause: ten faults that bring about another, which a diagnosis sees as well.

The `chain` of a mechanism is the truth: its own class first, then what that leads to on a server
that is near its limit (few slots, little cache, much load). Whether the later links came about in
an episode is seen from its journal (`benchmarks.diagnosis.chains`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lab.drills.injection import CacheFlushing, HelperInjection, HookInjection, InjectionTarget
from lab.drills.mechanism import CHAINS, TEST, Mechanism
from lab.drills.mechanisms.demand import SHARED_PREFIX, with_warm_cache
from lab.drills.mechanisms.tails.work import NOTED, long_batch
from lab.drills.mechanisms.work import HEAVY, constrained, open_regex
from lab.drills.outside import Helper
from lab.drills.traffic import TENANTS, Mix, PlannedRequest, Reader, Scene

SMALL_CACHE = ("--kv-memory", "16MiB", "--max-model-len", "256")
_FEW_SLOTS = ("--max-num-seqs", "6")
_STREAM = Mix(name="told", prompt=(16, 32), output=(100, 120), fields={"n": 4, "logprobs": 20})
_STREAM_TOKENS, _STREAM_LOAD, _LEAST_EVERY_S = 440.0, 0.35, 4.0
_BATCH_PROMPTS, _BATCHES_EVERY_S = 250, 8.0
_LEFT = Mix(name="left", output=(160, 200))
_LEAVES_EARLY = Reader(leave_after_tokens=6)
_ESSAY = Mix(name="essay", prompt=(8, 16), output=(100, 160))


def _held_blocks(scene: Scene) -> list[PlannedRequest]:
    """Streams that nobody reads in the fault; their sequences pause and keep their blocks."""
    begin_s, end_s = scene.fault_span_s
    draw, found = scene.rng("held"), list[PlannedRequest]()
    every_s = max(_LEAST_EVERY_S, _STREAM_TOKENS / (_STREAM_LOAD * scene.capacity.tokens_per_s))
    stops_reading = Reader(stop_after_tokens=12, stop_s=scene.phases.fault_s)
    for number in range(math.ceil(scene.phases.end_s / every_s)):
        at_s = (number + 0.5) * every_s
        is_slow = begin_s <= at_s < end_s and number % 4 < round(4 * scene.intensity)
        found.append(
            PlannedRequest(
                at_s=at_s,
                body=_STREAM.body(draw),
                tenant=TENANTS[number % len(TENANTS)],
                reader=stops_reading if is_slow else Reader(),
                is_culprit=is_slow,
            )
        )
    return scene.baseline() + [one for one in found if one.at_s < scene.phases.end_s]


def _held_blocks_and_essays(scene: Scene) -> list[PlannedRequest]:
    """The same among long outputs, which grow while the blocks are held."""
    essays = scene.requests("essays", 0.12 * scene.rate_per_s, scene.whole_span_s, _ESSAY)
    return _held_blocks(scene) + essays


def _leavers(scene: Scene) -> list[PlannedRequest]:
    rate_per_s = scene.intensity * scene.capacity.requests_per_s / 3
    return scene.baseline() + scene.requests(
        "leaving", rate_per_s, scene.whole_span_s, _LEFT, reader=_LEAVES_EARLY, is_culprit=True
    )


def _many_batches(scene: Scene) -> list[PlannedRequest]:
    burst = round(scene.intensity)
    times_s = scene.arrival_times(
        "batches", burst / _BATCHES_EVERY_S, *scene.fault_span_s, burst=burst
    )
    body = long_batch(scene.rng("batch"), _BATCH_PROMPTS)
    return scene.baseline() + [
        PlannedRequest(at_s=at_s, body=body, tenant="gray", is_culprit=True) for at_s in times_s
    ]


def _samplers(scene: Scene) -> list[PlannedRequest]:
    rate_per_s = scene.intensity * scene.rate_per_s
    return scene.baseline() + scene.requests(
        "heavy", rate_per_s, scene.fault_span_s, HEAVY, is_culprit=True
    )


def _stopper(target: InjectionTarget) -> list[Helper]:
    scene = target.scene
    values = (target.server.engine_pid, scene.intensity, scene.seed, target.other_core)
    return [Helper("stopper", *values)]


def _hogs(target: InjectionTarget) -> list[Helper]:
    return [Helper("busy", 0, target.engine_core) for _ in range(round(target.scene.intensity))]


def _chain(*links: str, level: float, **more: Any) -> Mechanism:
    return Mechanism(
        symptom=links[0], split=TEST, series=CHAINS, chain=links, levels=(level,), **more
    )


COMPOUNDS: tuple[Mechanism, ...] = (
    _chain(
        "slow_client",
        "kv_exhaustion",
        level=1.0,
        name="readers_hold_blocks",
        about="streams that nobody reads keep their blocks, and others wait for these",
        unit="of long streams",
        flags=(*SMALL_CACHE, "--stream-buffer", "16"),
        load=0.2,
        traffic=_held_blocks,
        clean=lambda scene: _held_blocks(replace(scene, intensity=0.0)),
    ),
    _chain(
        "slow_client",
        "kv_exhaustion",
        "kv_thrash",
        level=1.0,
        name="readers_then_thrash",
        about="streams that nobody reads keep their blocks, and long outputs lose theirs",
        unit="of long streams",
        flags=("--kv-memory", "18MiB", "--max-model-len", "256", "--stream-buffer", "16"),
        load=0.2,
        traffic=_held_blocks_and_essays,
        clean=lambda scene: _held_blocks_and_essays(replace(scene, intensity=0.0)),
    ),
    _chain(
        "ingest_backlog",
        "queue_overload",
        level=8.0,
        name="batches_then_wave",
        about="batches of long prompts hold up what comes after them, which then comes all at once",
        unit="at once",
        flags=("--max-num-seqs", "2", "--ingest-workers", "1"),
        mix=NOTED,
        load=0.7,
        traffic=_many_batches,
        clean=Scene.baseline,
    ),
    _chain(
        "cancellation_leak",
        "queue_overload",
        level=0.9,
        name="leak_then_queue",
        about="sequences of clients that left take the slots, and others wait for these",
        unit="of capacity",
        flags=_FEW_SLOTS,
        load=0.4,
        traffic=_leavers,
        injection=lambda scene: HookInjection("gateway", "leak", how="all"),
    ),
    _chain(
        "cancellation_leak",
        "kv_exhaustion",
        level=0.9,
        name="leak_then_cache",
        about="sequences of clients that left fill the cache, and others wait for blocks",
        unit="of capacity",
        flags=SMALL_CACHE,
        load=0.4,
        traffic=_leavers,
        injection=lambda scene: HookInjection("gateway", "leak", how="all"),
    ),
    _chain(
        "grammar_cost",
        "queue_overload",
        level=1.0,
        name="grammars_then_queue",
        about="masks of costly grammars slow all steps, so that requests wait for a slot",
        unit="of requests",
        flags=_FEW_SLOTS,
        load=0.65,
        traffic=lambda scene: constrained(scene, open_regex),
        clean=Scene.baseline,
    ),
    _chain(
        "heavy_sampling",
        "queue_overload",
        level=0.4,
        name="samples_then_queue",
        about="sampling of many choices slows all steps, so that requests wait for a slot",
        unit="of usual requests",
        flags=("--max-num-seqs", "12"),
        load=0.6,
        traffic=_samplers,
        clean=Scene.baseline,
    ),
    _chain(
        "throttled",
        "queue_overload",
        level=0.5,
        name="quota_then_queue",
        about="the engine's process is stopped for half of the time, so that requests wait for a "
        "slot",
        unit="of the time",
        flags=_FEW_SLOTS,
        load=0.65,
        injection=lambda scene: HelperInjection(_stopper),
    ),
    _chain(
        "cpu_starvation",
        "queue_overload",
        level=2.0,
        name="hogs_then_queue",
        about="processes that compute share the engine's core, so that requests wait for a slot",
        unit="processes",
        flags=_FEW_SLOTS,
        load=0.6,
        injection=lambda scene: HelperInjection(_hogs),
    ),
    _chain(
        "prefix_cache_cold",
        "queue_overload",
        level=2.0,
        name="flush_then_queue",
        about="the prefix cache is flushed again and again, and what is computed anew fills the "
        "slots",
        unit="flushes a second",
        flags=("--max-num-seqs", "4"),
        mix=SHARED_PREFIX,
        load=0.9,
        traffic=with_warm_cache,
        injection=lambda scene: CacheFlushing(scene.intensity),
    ),
)
