"""Faults of the machine: memory bandwidth, throttling, CPU contention, stalls of the loop."""

from __future__ import annotations

from lab.drills.injection import HelperInjection, HookInjection, InjectionTarget
from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.outside import Helper
from lab.drills.traffic import Mix, Scene

_STALL_EVERY_MS = 1000
_MEMCPY_MIB, _TRIAD_MIB = 64, 256
# small batches, whose steps are bound by reading the weights; prompts are bound by computing, which
# shows the difference
_READING_WEIGHTS = Mix(name="few rows", prompt=(32, 64), output=(48, 96))
_READING_LOAD = 0.4
_LOAD = 0.35  # low, because a slower server has a higher utilisation
_STALLED_LOAD = 0.5


def _stopper(target: InjectionTarget) -> list[Helper]:
    scene = target.scene
    return [
        Helper("stopper", target.server.engine_pid, scene.intensity, scene.seed, target.other_core)
    ]


def stall(scene: Scene, kind: str) -> HookInjection:
    """The engine's loop stands still for `intensity` ms each second: "gc" or "write"."""
    first = {"what": "heap", "ms": scene.intensity} if kind == "gc" else None
    return HookInjection(
        "engine", "stall", first, kind=kind, ms=scene.intensity, every_ms=_STALL_EVERY_MS
    )


MACHINE = (
    Mechanism(
        symptom="memory_bandwidth",
        name="memcpy",
        split=DEV,
        about="a process on another core copies memory",
        unit="of its time",
        levels=(0.6, 0.8, 1.0),
        harms=("itl_p50", "e2e_p50"),
        mix=_READING_WEIGHTS,
        load=_READING_LOAD,
        injection=lambda scene: HelperInjection(
            lambda target: [Helper("memcpy", scene.intensity, _MEMCPY_MIB, target.other_core)]
        ),
    ),
    Mechanism(
        symptom="memory_bandwidth",
        name="triad",
        split=TEST,
        about="a process on another core reads two large arrays and writes a third",
        unit="of its time",
        levels=(0.6, 0.8, 1.0),
        harms=("itl_p50", "e2e_p50"),
        mix=_READING_WEIGHTS,
        load=_READING_LOAD,
        injection=lambda scene: HelperInjection(
            lambda target: [Helper("triad", scene.intensity, _TRIAD_MIB, target.other_core)]
        ),
    ),
    Mechanism(
        symptom="throttled",
        name="stopped",
        split=DEV,
        about="the engine's process is stopped and continued, 20 to 70 ms at a time",
        unit="of the time",
        levels=(0.3, 0.4, 0.5),
        harms=("itl_p50", "e2e_p50"),
        load=_LOAD,
        injection=lambda scene: HelperInjection(_stopper),
    ),
    Mechanism(
        symptom="host_stall",
        name="gc",
        split=DEV,
        about="each second a garbage collection of a large heap blocks the engine's loop",
        unit="ms",
        levels=(200.0, 300.0, 500.0),
        harms=("stall_p50",),
        load=_STALLED_LOAD,
        injection=lambda scene: stall(scene, "gc"),
    ),
    Mechanism(
        symptom="host_stall",
        name="write",
        split=TEST,
        about="each second the engine's loop writes to a file and waits for the disk",
        unit="ms",
        levels=(200.0, 300.0, 500.0),
        harms=("stall_p50",),
        load=_STALLED_LOAD,
        injection=lambda scene: stall(scene, "write"),
    ),
    Mechanism(
        symptom="cpu_starvation",
        name="busy",
        split=DEV,
        about="processes that compute share the engine's core",
        unit="processes",
        levels=(1.0, 2.0, 3.0),
        harms=("itl_p50", "e2e_p50"),
        load=0.25,
        injection=lambda scene: HelperInjection(
            lambda target: [
                Helper("busy", 0, target.engine_core) for _ in range(round(scene.intensity))
            ]
        ),
    ),
    Mechanism(
        symptom="cpu_starvation",
        name="priority",
        split=TEST,
        about="a process of better priority (a nice value below 0) shares the engine's core",
        unit="below nice 0",
        levels=(2.0, 3.0, 5.0),
        harms=("itl_p50", "e2e_p50"),
        load=0.25,
        injection=lambda scene: HelperInjection(
            lambda target: [Helper("busy", -scene.intensity, target.engine_core)]
        ),
    ),
)
