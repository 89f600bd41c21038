"""Loaded into the processes of a server from outside; nothing of it is in the product.

In the gateway it measures every fold that belongs to the diagnosis: CPU time of the thread in
`on_facts`, without what another thread takes meanwhile. While the file `off` is in
`PHASESCOPE_COST` these folds get no facts, so that the CPU time of the whole process can be
compared with them and without. The sums are written to `cost.json` there, once a second.

With `GATEWAY_SCALE_FOLDER` the hook of `benchmarks/gateway_scale` is loaded too, whose executor
computes nothing: one file of this name is loaded only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_FOLDER = "PHASESCOPE_COST"
_EVERY_NS = 1_000_000_000


class _Measured:
    """A fold with its CPU time; everything but `on_facts` is the fold's own."""

    def __init__(self, name: str, fold: Any, folder: Path) -> None:
        self._name, self._fold = name, fold
        self._off, self._path = folder / "off", folder / f"{name}.cost"
        self._cpu_ns = self._wall_ns = self._facts = self._calls = self._due_ns = 0
        self._is_off = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fold, name)

    def on_facts(self, facts: Any) -> None:
        now_ns = time.perf_counter_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self._is_off = self._off.exists()
            self._write()
        if self._is_off:
            return
        cpu_ns = time.thread_time_ns()
        self._fold.on_facts(facts)
        self._cpu_ns += time.thread_time_ns() - cpu_ns
        self._wall_ns += time.perf_counter_ns() - now_ns
        self._facts += len(facts)
        self._calls += 1

    def _write(self) -> None:
        found = {
            "at_ns": time.perf_counter_ns(),
            "cpu_ns": self._cpu_ns,
            "wall_ns": self._wall_ns,
            "facts": self._facts,
            "calls": self._calls,
        }
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(self._path)


def _measure_folds(folder: Path) -> None:
    from telemetry.pump.pump import Pump

    add = Pump.add_fold

    def add_measured(pump: Any, name: str, fold: Any) -> None:
        is_ours = type(fold).__module__.partition(".")[0] == "diagnosis"
        add(pump, name, _Measured(name, fold, folder) if is_ours else fold)

    Pump.add_fold = add_measured  # type: ignore[method-assign]


def _load(path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gateway_scale_hook", path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.append(str(path.parent))
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


if _FOLDER in os.environ and "service.cli.main" in sys.orig_argv:
    if "serve" in sys.orig_argv and "engine-process" not in sys.orig_argv:
        _measure_folds(Path(os.environ[_FOLDER]))
    if "GATEWAY_SCALE_FOLDER" in os.environ:
        _load(Path(__file__).resolve().parents[3] / "gateway_scale" / "hook" / "sitecustomize.py")
