"""Causes that have a cause: ten faults that bring about another, which a diagnosis sees as well.

The `chain` of a mechanism is the truth: its own class first, then what that leads to on a server
that is near its limit (few slots, little cache, much load). Whether the later links came about in
an episode is seen from its journal (`benchmarks.diagnosis.chains`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.drills.injection import CacheFlushing, HelperInjection, HookInjection, InjectionTarget
from lab.drills.mechanism import CHAINS, TEST, Mechanism
from lab.drills.mechanisms.demand import SHARED_PREFIX, longer_prompts, with_warm_cache
from lab.drills.mechanisms.machine import stall
from lab.drills.mechanisms.tails.work import NOTED, documents
from lab.drills.mechanisms.work import HEAVY, constrained, open_regex
from lab.drills.outside import Helper
from lab.drills.traffic import Mix, PlannedRequest, Reader, Scene

SMALL_CACHE = ("--kv-memory", "16MiB", "--max-model-len", "256")
_FEW_SLOTS = ("--max-num-seqs", "6")
_REQUESTS_BETWEEN = 40  # usual ones in the time from document to document
_BRIEF = replace(NOTED, name="noted, brief", output=(4, 12))
_LEFT = Mix(name="left", output=(160, 200))
_LEAVES_EARLY = Reader(leave_after_tokens=6)


def _leavers(scene: Scene) -> list[PlannedRequest]:
    rate_per_s = scene.intensity * scene.capacity.requests_per_s / 3
    return scene.baseline() + scene.requests(
        "leaving", rate_per_s, scene.whole_span_s, _LEFT, reader=_LEAVES_EARLY, is_culprit=True
    )


def _whole_documents(scene: Scene) -> list[PlannedRequest]:
    return scene.baseline() + documents(scene, scene.capacity.requests_per_s / _REQUESTS_BETWEEN)


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
        "long_prompts",
        "kv_exhaustion",
        level=6.0,
        name="prompts_then_cache",
        about="prompts become longer and fill the cache, and others wait for blocks",
        unit="times as long",
        flags=("--kv-memory", "16MiB", "--max-model-len", "352"),
        load=0.45,
        traffic=lambda scene: longer_prompts(scene, scene.rate_per_s),
        clean=Scene.baseline,
    ),
    _chain(
        "host_stall",
        "queue_overload",
        level=500.0,
        name="stalls_then_queue",
        about="each second the engine's loop waits for the disk, so that requests wait for a slot",
        unit="ms",
        flags=_FEW_SLOTS,
        load=0.65,
        injection=lambda scene: stall(scene, "write"),
    ),
    _chain(
        "ingest_backlog",
        "queue_overload",
        level=7.0,
        name="documents_then_wave",
        about="whole documents, whose end is wanted, hold up what comes after them, which then "
        "comes all at once",
        unit="megabytes",
        flags=("--max-num-seqs", "2", "--ingest-workers", "1"),
        mix=_BRIEF,
        load=0.7,
        traffic=_whole_documents,
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
