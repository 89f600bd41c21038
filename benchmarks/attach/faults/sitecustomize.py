"""Makes the adapter fail inside vLLM's processes, loaded from outside the product.

Python imports this in every process that has this folder on PYTHONPATH. When a module of the
adapter is imported, the functions that `targets.json` in PHASESCOPE_ATTACH_FAULTS names are
replaced. Each raises while the file of its name in that folder holds a number that is not 0: a
positive one counts down, a negative one lasts. Until then they do what they did.

A target is `module:Class.method`. Of a method that a decorator keeps in its closure as `method`,
the inner one is replaced, so that the decorator, which is the product's, has to deal with the
error. In targets.json `bytes` is how much the adapter may keep waiting, to make it lose facts, and
`errors` how many errors of a hook it takes before it turns it off, so that each part of a hook can
raise; 0 leaves what the product has.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_VARIABLE = "PHASESCOPE_ATTACH_FAULTS"
_TRANSPORT, _GUARD = "service.attach.inside.transport", "service.attach.inside.guard"


Orders = dict[str, Any]


class Injected(Exception):
    """Raised on purpose."""


def is_due(folder: Path, target: str) -> bool:
    """Whether the target is to raise now; counts down."""
    path = folder / target
    try:
        left = int(path.read_text())
    except (OSError, ValueError):
        return False
    if left > 0:
        path.write_text(str(left - 1))
    return left != 0


def failing(folder: Path, target: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        if is_due(folder, target):
            raise Injected(target)
        return original(*args, **named)

    return call


def replace(folder: Path, target: str, module: ModuleType) -> None:
    """Put the failing function in place of what the target names in the module."""
    owner: Any = module
    *path, name = target.partition(":")[2].split(".")
    for part in path:
        owner = getattr(owner, part)
    found = owner.__dict__[name]
    inner = dict(zip(found.__code__.co_freevars, found.__closure__ or (), strict=True))
    if "method" in inner:
        inner["method"].cell_contents = failing(folder, target, inner["method"].cell_contents)
    else:
        setattr(owner, name, failing(folder, target, found))


class Patching(Loader):
    """Loads a module as before, then replaces in it what is to fail."""

    def __init__(self, loader: Any, folder: Path, targets: Sequence[str], orders: Orders) -> None:
        self._loader, self._folder = loader, folder
        self._targets, self._orders = targets, orders

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for target in self._targets:
            replace(self._folder, target, module)
        if module.__name__ == _TRANSPORT and self._orders["bytes"]:
            module.Bounds.__init__.__kwdefaults__["waiting_bytes"] = self._orders["bytes"]
        if module.__name__ == _GUARD and self._orders["errors"]:
            vars(module)["_MOST_ERRORS"] = self._orders["errors"]


class Finder(MetaPathFinder):
    """Finds the modules that are to be patched as Python would, and nothing else."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self._folder, self._orders = folder, orders
        self._targets: dict[str, list[str]] = {_TRANSPORT: [], _GUARD: []}
        for target in orders["targets"]:
            self._targets.setdefault(target.partition(":")[0], []).append(target)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in self._targets:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            mine = self._targets[fullname]
            spec.loader = Patching(spec.loader, self._folder, mine, self._orders)
        return spec


def install() -> None:
    folder = os.environ.get(_VARIABLE)
    if folder:
        orders = json.loads((Path(folder) / "targets.json").read_text())
        sys.meta_path.insert(0, Finder(Path(folder), orders))


install()
