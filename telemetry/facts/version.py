"""Which version of phasescope runs, so that servers of a fleet can be told apart by it."""

from __future__ import annotations

import importlib.metadata


def installed_version() -> str:
    """Empty where the package is not installed but run from its sources."""
    try:
        return importlib.metadata.version("phasescope")
    except importlib.metadata.PackageNotFoundError:
        return ""
