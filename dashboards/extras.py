"""Packages that only some commands need, imported when they are: they are extras of this one."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ExtraMissing(Exception):
    """A package is not installed; the message is one line that says how to install it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'phasescope[{extra}]'")
        self.package, self.extra = package, extra


def need(module: str, extra: str) -> Any:
    """The module, which belongs to an extra. Raises ExtraMissing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ExtraMissing(package, extra) from error
