"""Failures: out of memory, hangs, failed steps, broken models, lost facts."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.drills.injection import CollectorHang, EngineStop, HookInjection
from lab.drills.mechanism import DEV, TEST, Mechanism

_HEADER_BYTES = 8 << 20
_VOCABULARY_KEY = b"tokenizer.ggml.tokens"


def truncate_weights(model: Path, broken: Path, share: float) -> None:
    """Copy the model's file without the last `share` of it."""
    shutil.copyfile(model, broken)
    with broken.open("r+b") as file:
        file.truncate(int(model.stat().st_size * (1 - share)))


def lose_vocabulary(model: Path, broken: Path, share: float) -> None:
    """Copy the model's file with the vocabulary's key renamed, so that no vocabulary is found."""
    shutil.copyfile(model, broken)
    with broken.open("r+b") as file:
        head = file.read(_HEADER_BYTES)
        place = head.index(_VOCABULARY_KEY)
        file.seek(place)
        file.write(_VOCABULARY_KEY[:-1] + b"z")


FAILURES = (
    Mechanism(
        symptom="out_of_memory",
        name="activations",
        split=DEV,
        about="steps above a number of tokens run out of memory",
        unit="tokens",
        levels=(48.0, 40.0, 32.0),
        traffic=lambda scene: scene.baseline(),
        injection=lambda scene: HookInjection("engine", "memory", above_tokens=scene.intensity),
    ),
    Mechanism(
        symptom="engine_hung",
        name="stopped",
        split=DEV,
        about="the engine's process is stopped by a signal, and continued before it is replaced",
        unit="s",
        levels=(6.0, 12.0, 20.0),
        injection=lambda scene: EngineStop(scene.intensity),
    ),
    Mechanism(
        symptom="engine_hung",
        name="deadlock",
        split=TEST,
        about="native code of the engine keeps the interpreter lock and never returns, and the "
        "engine is replaced",
        unit="times",
        levels=(1.0,),
        flags=("--engine-deadline", "8"),
        injection=lambda scene: HookInjection("engine", "deadlock"),
    ),
    Mechanism(
        symptom="step_failure",
        name="kernel",
        split=DEV,
        about="a share of the steps fails by an operation that torch refuses",
        unit="of steps",
        levels=(0.01, 0.03, 0.1),
        traffic=lambda scene: scene.baseline(),
        injection=lambda scene: HookInjection(
            "engine", "kernel", share=scene.intensity, seed=scene.seed
        ),
    ),
    Mechanism(
        symptom="load_failure",
        name="truncated",
        split=DEV,
        about="the end of the model's file is missing",
        unit="of the file",
        levels=(0.1, 0.5, 0.9),
        broken_model=truncate_weights,
    ),
    Mechanism(
        symptom="load_failure",
        name="no_vocabulary",
        split=TEST,
        about="the model's file has no vocabulary",
        unit="times",
        levels=(1.0,),
        broken_model=lose_vocabulary,
    ),
    Mechanism(
        symptom="telemetry_degraded",
        name="collector_hangs",
        split=DEV,
        about="the receiver of spans accepts connections and does not answer",
        unit="of exports",
        levels=(1.0,),
        needs_collector=True,
        injection=lambda scene: CollectorHang(),
    ),
    Mechanism(
        symptom="telemetry_degraded",
        name="facts_lost",
        split=TEST,
        about="a share of the steps is not recorded, and not counted as lost",
        unit="of steps",
        levels=(0.1, 0.3, 0.5),
        injection=lambda scene: HookInjection(
            "engine", "drop_facts", share=scene.intensity, seed=scene.seed
        ),
    ),
)
