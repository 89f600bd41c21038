"""SGLang on a machine without a GPU, out of its own wheel and the environment of a peer.

There is no build of SGLang for x86 CPUs in the package index, and its wheel asks for gigabytes of
CUDA. Yet its Python code runs on the CPU build of torch, with attention and sampling in torch. So:
the wheel is unpacked, not installed; torch, transformers and the rest come from the environment
that `python -m benchmarks.peers.install` makes for vLLM; five small packages are added. torchvision
is only imported, by code for images that no request here reaches: it is stood in for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.peers.layout import REPOSITORY, default_root

VERSIONS = ("0.5.23", "0.5.22")
MODEL = default_root() / "models" / "SmolLM2-135M-Instruct"
_EXTRA = (
    "gguf==0.19.0", "ipython==9.18.1", "orjson==3.13.0", "soundfile==0.14.0", "traitlets==5.16.1",
)  # fmt: skip
_PLUGIN = "[sglang.srt.plugins]\nphasescope = service.attach.inside.sglang.plugin:register\n"
_STAND_IN = '''
"""Stands in for torchvision: every name is a class that nobody uses."""

import importlib.abc
import importlib.machinery
import sys
import types


class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls.__name__ + "." + name


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Meta(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
'''


def root() -> Path:
    return default_root().parent / "sglang"


def source(version: str) -> Path:
    """The folder with the package `sglang` of this release; downloaded once, 40 MB each."""
    folder = root() / version
    if not (folder / "sglang" / "version.py").exists():
        wheels = root() / "wheels"
        _pip("download", "--dest", str(wheels), f"sglang=={version}")
        (wheel,) = wheels.glob(f"sglang-{version}-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
    return folder


def python() -> Path | None:
    """The interpreter with torch for the CPU; None: that peer is not installed."""
    found = default_root() / "vllm" / "bin" / "python"
    return found if found.exists() else None


def environment(version: str, attach: Path | None = None) -> dict[str, str]:
    """For a process of SGLang, with the adapter of this tree on its path."""
    site = root() / "site"
    if not (site / "orjson").exists():
        _pip("install", "--target", str(site), *_EXTRA)
    stand_in = root() / "stand-in"
    _distribution(stand_in, "torchvision", "0.28.0", "")
    (stand_in / "sitecustomize.py").write_text(_STAND_IN)
    plugin = root() / "plugin"
    _distribution(plugin, "phasescope", "0.1.0", _PLUGIN)
    path = [REPOSITORY, plugin, source(version), site, stand_in]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    found.pop("PHASESCOPE_ATTACH", None)
    if attach is not None:
        found["PHASESCOPE_ATTACH"] = str(attach)
    return found


def _distribution(folder: Path, name: str, version: str, entry_points: str) -> None:
    """What `importlib.metadata` reads of an installed package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def _pip(command: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *arguments], check=True
    )
