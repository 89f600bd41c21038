"""The one place that imports OpenVINO.

Its package imports a model converter, and the converter reports to its makers over the
network that it was imported. Graphs here are built by hand, so the converter is kept out:
the package copes with its absence.

OpenVINO is an optional way of computing, so `load_runtime` says in one line when it is
not installed or not of a version whose attention operator is known.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from service.config.settings import ConfigError

_CONVERTER = "openvino.tools.ovc"
_AMX_ROWS = 32


def load_runtime() -> ModuleType:
    """The `openvino` package, without its converter. Raises ConfigError."""
    loaded = sys.modules.get("openvino")
    if loaded is not None:
        return loaded
    modules: dict[str, Any] = sys.modules
    modules[_CONVERTER] = None
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise ConfigError(
            f"the OpenVINO executor cannot be used: {error}; pip install openvino, or choose "
            "another executor"
        ) from error
    finally:
        modules.pop(_CONVERTER, None)


def multiplies_bf16(core: Any) -> bool:
    """Whether the CPU has bf16 matrix instructions that OpenVINO uses."""
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def tile_rows(cpuinfo: Path = Path("/proc/cpuinfo")) -> int:
    """Two tiles of this CPU's matrix unit (AMX), which computes 16 rows together. OpenVINO prepares
    its kernels for each number of rows that it has not seen, so fewer numbers are better. 0 without
    such a unit, or where it cannot be told."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return 0
    flags = next((line for line in lines if line.startswith("flags")), "")
    return _AMX_ROWS if "amx_tile" in flags.split() else 0
