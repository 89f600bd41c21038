"""All numbers that decide a verdict or a root cause, in one table.

They stand where they are used: in modules of this package named `thresholds` or `..._thresholds`,
in the modules of `lab.replay` and in `telemetry.costs.cost_model`, as annotated constants:

    NAME: Annotated[type, unit, meaning, reason] = value

A new module with such a name is in the table by its name. Numbers that are no thresholds (units,
sizes of memory) are not annotated.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import NamedTuple, get_type_hints

import diagnosis
from lab import replay
from telemetry.costs import cost_model

_ABOUT = ("unit", "meaning", "reason")


class Threshold(NamedTuple):
    """One row: `reason` is why the value is what it is, `module` where it stands."""

    name: str
    value: float | tuple[float, ...]
    unit: str
    meaning: str
    reason: str
    module: str

    @property
    def room(self) -> str:
        """Its package, and its module where that is not just `thresholds`."""
        return self.module.removesuffix(".thresholds")


def table() -> list[Threshold]:
    """Every threshold, module by module."""
    return [row for module in modules() for row in thresholds_of(module)]


def modules() -> list[ModuleType]:
    """The modules that have thresholds."""
    names = [
        name
        for _, name, _ in walk_packages(diagnosis.__path__, "diagnosis.")
        if name.endswith("thresholds")
    ]
    names += [name for _, name, _ in walk_packages(replay.__path__, "lab.replay.")]
    found = [*map(import_module, names), cost_model]
    return [module for module in found if thresholds_of(module)]


def thresholds_of(module: ModuleType) -> list[Threshold]:
    """The constants of a module that are annotated with unit, meaning and reason. Raises ValueError
    for one that lacks a part of it."""
    hints = get_type_hints(module, include_extras=True)
    found: list[Threshold] = []
    for name, hint in hints.items():
        if hasattr(hint, "__metadata__"):
            about = hint.__metadata__
            if len(about) != len(_ABOUT) or not all(isinstance(one, str) and one for one in about):
                raise ValueError(f"{module.__name__}.{name}: wants {', '.join(_ABOUT)}")
            unit, meaning, reason = about
            value = getattr(module, name)
            found.append(Threshold(name, value, unit, meaning, reason, module.__name__))
    return found
