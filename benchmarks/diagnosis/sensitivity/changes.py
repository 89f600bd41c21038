"""A threshold changed by a factor, in every module that uses it, and back again.

Modules import numbers by their names, and work some out of others when they are imported. So a
change gives the new value to the name in every module, and evaluates again what a module assigned
from it. That is worked out once; to apply it is to set a few names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from diagnosis.threshold_table import Threshold, table

FACTORS = (0.8, 1.25)
_PACKAGES = ("diagnosis.", "lab.replay.", "telemetry.costs.")

Value = float | tuple[float, ...]


class Variant(NamedTuple):
    """One number of the table times `factor`; of a tuple, each of its numbers."""

    row: Threshold
    factor: float
    value: Value

    @property
    def name(self) -> str:
        return f"{self.row.name} x{self.factor:g}"


def variants() -> list[Variant]:
    """Both directions of every number that has a value there."""
    found: list[Variant] = []
    for row in table():
        for factor in FACTORS:
            value = changed(row, factor)
            if value != row.value:
                found.append(Variant(row, factor, value))
    return found


def changed(row: Threshold, factor: float) -> Value:
    """Whole numbers change by one at least, and stay above 0. What is near 1 and cannot pass it (a
    quantile, a probability) changes its distance from 1."""
    value = row.value
    if isinstance(value, tuple):
        return tuple(one * factor for one in value)
    if isinstance(value, int):
        moved = round(value * factor)
        if moved == value:
            moved += 1 if factor > 1 else -1
        return max(1, moved)
    if row.unit in ("quantile", "probability") and value * max(FACTORS) >= 1:
        return 1 - (1 - value) / factor
    return value * factor


class Changes:
    """The names that variants set: in which namespaces, to what, and what was there."""

    def __init__(self, *changed_rows: Variant) -> None:
        self.variants = changed_rows
        self._found: dict[tuple[str, str], tuple[Any, Any]] = {}
        for variant in changed_rows:
            row = variant.row
            self._replace(row.name, vars(sys.modules[row.module])[row.name], variant.value)
        places = [(vars(sys.modules[at]), name, pair) for (at, name), pair in self._found.items()]
        self._sets = [(namespace, name, new) for namespace, name, (_, new) in places]
        self._back = [(namespace, name, old) for namespace, name, (old, _) in places]
        self.modules = frozenset(module for module, _ in self._found)

    @contextmanager
    def applied(self) -> Iterator[None]:
        for namespace, name, new in self._sets:
            namespace[name] = new
        try:
            yield
        finally:
            for namespace, name, old in self._back:
                namespace[name] = old

    def _replace(self, name: str, old: Any, new: Any) -> None:
        """Wherever `name` is this object; then what these modules made of it."""
        mine = [module for module in _loaded() if vars(module).get(name) is old]
        for module in mine:
            self._found[module.__name__, name] = old, new
        for module in mine:
            for other in _made_of(module, name):
                known = self._found.items()
                namespace = dict(vars(module))
                namespace |= {n: new for (at, n), (_, new) in known if at == module.__name__}
                before = vars(module)[other.id]
                made = eval(compile(ast.Expression(other.value), "<changed>", "eval"), namespace)
                self._replace(other.id, before, made)


class _Assigned(NamedTuple):
    id: str
    value: ast.expr


def _loaded() -> list[ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(_PACKAGES) and getattr(module, "__file__", None)
    ]


def _made_of(module: ModuleType, name: str) -> list[_Assigned]:
    """What the module assigns, at its top level, from an expression with `name` in it."""
    found: list[_Assigned] = []
    for node in ast.parse(Path(module.__file__ or "").read_text()).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or value is None or target.id == name:
            continue
        if any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(value)):
            found.append(_Assigned(target.id, value))
    return found
