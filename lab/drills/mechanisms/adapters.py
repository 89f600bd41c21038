"""Faults of adapters: they make room for each other, again and again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.traffic import PlannedRequest, Scene

_KNOWN, _USED = 12, 4
_MEMORY = ("--lora-memory", "512MiB")


def _files(folder: Path, model: str | None) -> tuple[str, ...]:
    """Adapters, written by another process: it needs the model's sizes, and so torch."""
    command = [sys.executable, "-m", "service.device.random_adapters"]
    subprocess.run([*command, str(folder), str(_KNOWN), *filter(None, [model])], check=True)
    names = [f"adapter-{number}" for number in range(_KNOWN)]
    return "--lora", *(f"{name}={folder / name}" for name in names)


def _with_adapters(scene: Scene, used: int, later: int) -> list[PlannedRequest]:
    """The baseline, each request with one of the first `used` adapters, in the fault of the first
    `later`."""
    draw, (begin_s, end_s) = scene.rng("adapters"), scene.fault_span_s
    found: list[PlannedRequest] = []
    for request in scene.baseline():
        is_later = begin_s <= request.at_s < end_s
        number = int(draw.integers(0, later if is_later else used))
        body = {**msgspec.json.decode(request.body), "model": f"adapter-{number}"}
        found.append(replace(request, body=msgspec.json.encode(body)))
    return found


def _usual(scene: Scene) -> list[PlannedRequest]:
    return _with_adapters(scene, _USED, _USED)


ADAPTERS = (
    Mechanism(
        symptom="adapter_churn",
        name="few_places",
        split=DEV,
        about="fewer adapters may be in memory than there are in use",
        unit="adapters",
        levels=(2.0, 1.0),
        harms=("ttft_p50", "ttft_p95"),
        flags=(*_MEMORY, "--max-loras", str(_USED)),
        load=0.4,
        traffic=_usual,
        files=_files,
        bad_flags=lambda need, places: ("--max-loras", str(round(places))),
    ),
    Mechanism(
        symptom="adapter_churn",
        name="many_adapters",
        split=TEST,
        about="requests ask for more adapters than may be in memory",
        unit="adapters",
        levels=(6.0, 8.0, 12.0),
        harms=("ttft_p50", "ttft_p95"),
        flags=(*_MEMORY, "--max-loras", str(_USED)),
        load=0.4,
        traffic=lambda scene: _with_adapters(scene, _USED, round(scene.intensity)),
        clean=_usual,
        files=_files,
    ),
)
