"""Makes vLLM's environment find phasescope as if it were installed, without installing into it.

A package manager would write `phasescope-VERSION.dist-info`, by which vLLM finds the plugin's entry
points. Here a folder with only that, made from pyproject.toml, comes first on PYTHONPATH, and the
repository after it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.layout import REPOSITORY


def entry_points_text(project: Mapping[str, Any]) -> str:
    """The entry points as `entry_points.txt` has them: a section for each group."""
    groups: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
    sections = (
        "\n".join([f"[{group}]", *(f"{name} = {where}" for name, where in points.items())])
        for group, points in groups.items()
    )
    return "\n\n".join(sections) + "\n"


def write_overlay(folder: Path) -> Path:
    """The folder, with the metadata of this checkout in it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points_text(project))
    return folder


def python_path(folders: Sequence[Path]) -> str:
    """The value of PYTHONPATH with these first."""
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*(str(folder) for folder in folders), *([known] if known else [])])
