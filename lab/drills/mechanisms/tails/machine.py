"""Tails that the machine makes: what takes it away comes and goes."""

from __future__ import annotations

from lab.drills.injection import HelperInjection, HookInjection, Injection
from lab.drills.mechanism import Mechanism
from lab.drills.mechanisms.tails.shared import GAPS, LATE_FIRST, SHORT_STEPS, tail
from lab.drills.outside import Helper
from lab.drills.traffic import Mix, Scene

_FEW_ROWS = Mix(name="few rows", prompt=(32, 64), output=(48, 96))
_PERIOD_MS = 3000.0
_GATHER_MIB = 256
_SPELL_MS, _SPELL_EVERY_MS = 2000.0, 6000.0
_STALL_MS = 160.0


def _quota(scene: Scene) -> Injection:
    return HelperInjection(
        lambda target: [
            Helper(
                "quota",
                target.server.engine_pid,
                scene.intensity,
                _SPELL_MS,
                _SPELL_EVERY_MS,
                target.other_core,
            )
        ]
    )


def _thief(scene: Scene) -> Injection:
    return HelperInjection(
        lambda target: [Helper("thief", scene.intensity, _PERIOD_MS, target.engine_core)]
    )


def _gather(scene: Scene) -> Injection:
    return HelperInjection(
        lambda target: [
            Helper("gather", scene.intensity, _PERIOD_MS, _GATHER_MIB, target.other_core)
        ]
    )


def _regex(scene: Scene) -> Injection:
    return HookInjection(
        "engine", "stall", kind="regex", ms=_STALL_MS, every_ms=60_000 / scene.intensity
    )


MACHINE_TAILS: tuple[Mechanism, ...] = (
    tail(
        (0.05, 1.0),
        LATE_FIRST,
        symptom="memory_bandwidth",
        name="gather",
        about="for a part of every three seconds a process on another core reads random places of "
        "a large array",
        unit="of the time",
        mix=_FEW_ROWS,
        load=0.75,
        injection=_gather,
    ),
    tail(
        (0.1, 0.92),
        LATE_FIRST,
        symptom="throttled",
        name="quota",
        about="in two of every six seconds the engine's process is stopped at the end of each "
        "tenth of a second, as by a quota",
        unit="of the spell",
        load=0.35,
        injection=_quota,
    ),
    tail(
        (8.0, 200.0),
        GAPS,
        symptom="host_stall",
        name="regex",
        about="now and then a regular expression backtracks for 160 ms in the engine's loop",
        unit="a minute",
        flags=SHORT_STEPS,
        load=0.35,
        injection=_regex,
    ),
    tail(
        (0.06, 1.0),
        LATE_FIRST,
        symptom="cpu_starvation",
        name="thief",
        about="for a part of every three seconds another process has the engine's core",
        unit="of the time",
        load=0.3,
        injection=_thief,
    ),
)
