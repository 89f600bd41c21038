"""Make phasescope visible in an environment that it is not installed in.

    python -m benchmarks.peers.overlay FOLDER

writes FOLDER/phasescope-VERSION.dist-info with the entry points of pyproject.toml, and prints a
PYTHONPATH with this repository and that folder. An engine that is started with it finds the plugin
as if phasescope had been installed beside it, and nothing in its environment is changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path

from benchmarks.peers.layout import REPOSITORY, say


def write_overlay(folder: Path) -> Path:
    """The folder with metadata of an installed phasescope; written anew each time."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def python_path(folder: Path, more: str = "") -> str:
    """This repository, the overlay in `folder`, and what was on the path before."""
    return os.pathsep.join(filter(None, [str(REPOSITORY), str(write_overlay(folder)), more]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    say(python_path(parser.parse_args().folder.resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
