"""Compiles the C++ sources, once for each machine, compiler and version of the sources.

They are compiled for the instruction set of this CPU, which gives most of the speed; so no binary
is shipped. It takes some seconds and a C++ compiler; without one the caller uses another executor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = (
    "decoder.cpp", "decoder_weights.cpp", "decoder_attention.cpp", "decoder_adapters.cpp",
    "library.cpp",
)  # fmt: skip
_COMPILERS = ("g++", "clang++")
_FLAGS = (
    "-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-fPIC", "-shared", "-pthread",
)  # fmt: skip
_TIMEOUT_S = 300


class NoNativeLibrary(Exception):
    """The library cannot be compiled or loaded here; the message says why in one line."""


def library_path(progress: Callable[[str], None]) -> Path:
    """The compiled library, compiled now if need be; it can be loaded. Raises NoNativeLibrary."""
    compiler = _find_compiler()
    try:
        path = _cache_folder() / f"decoder-{_fingerprint(compiler)}.so"
        if not path.exists():
            progress("compiling the native decoder for this CPU, once")
            _compile(compiler, path)
        ctypes.CDLL(str(path))  # a file system may run nothing that lies on it
    except (OSError, RuntimeError) as error:
        raise NoNativeLibrary(f"{error}; XDG_CACHE_HOME may name another cache folder") from error
    return path


def _find_compiler() -> str:
    from_environment = os.environ.get("CXX")
    for name in (from_environment,) if from_environment else _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    looked_for = from_environment or " or ".join(_COMPILERS)
    raise NoNativeLibrary(f"no C++ compiler ({looked_for} not found); install g++")


def _cache_folder() -> Path:
    """Raises RuntimeError where there is no home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "phasescope" / "native"


def _fingerprint(compiler: str) -> str:
    """A hash of everything that the compiled library depends on."""
    digest = hashlib.sha256()
    for source in sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"))):
        digest.update(source.name.encode() + source.read_bytes())
    stat = os.stat(compiler)
    digest.update(repr((_FLAGS, _SOURCES, compiler, stat.st_size, stat.st_mtime_ns)).encode())
    digest.update(_cpu().encode())
    return digest.hexdigest()[:20]


def _cpu() -> str:
    """The CPU's name and instruction sets: a home folder may be shared between machines."""
    fields = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(fields)}))


def _compile(compiler: str, path: Path) -> None:
    """Compile to a temporary file and move it into place, so that two servers may start at once.
    Raises NoNativeLibrary, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        command = [compiler, *_FLAGS, *(str(_FOLDER / name) for name in _SOURCES), "-o", str(fresh)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoNativeLibrary(f"{compiler}: {error}") from error
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            first = (errors or done.stderr.splitlines() or ["no message"])[0]
            raise NoNativeLibrary(f"{compiler} failed: {first}")
        os.replace(fresh, path)
