"""An environment of its own for each client, made when it is first asked for.

    python -m benchmarks.clients.environments [CLIENT ...]

Locks in `requirements/` are installed without resolving anything, so that no index can slip in
another version. They hold what was run, less the builds of torch that some name and none needs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.layout import PeerError, fail, run, say

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Client:
    """What shows that it is installed, and the oldest Python that it runs on."""

    probe: str
    python: tuple[int, int] = (3, 11)


CLIENTS = {
    "langchain": Client("import langchain_openai"),
    "litellm": Client("import litellm"),
    "sglang-router": Client("import sglang_router"),
    "vllm-router": Client("import vllm_router"),
    "smg": Client("import smg"),
    "guidellm": Client("import guidellm"),
    "aiperf": Client("import aiperf"),
    "inference-perf": Client("import inference_perf", (3, 12)),
}
_NEWEST_MINOR = 20


def clients_root() -> Path:
    """`$XDG_CACHE_HOME/phasescope/clients`, by default below ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "clients"


def environment(name: str, root: Path | None = None) -> Path:
    """The folder of a client's environment. Raises PeerError, with what to do, if it cannot be
    made."""
    client, folder = CLIENTS[name], (root or clients_root()) / name
    lock, stamp = HERE / "requirements" / f"{name}.txt", folder / "installed.txt"
    if stamp.is_file() and stamp.read_text() == lock.read_text():
        return folder
    log = folder.parent / "logs" / f"install-{name}.log"
    run(f"{name}: environment", [_python(name, client), "-m", "venv", "--clear", folder], log)
    command: list[object] = [folder / "bin" / "python", "-m", "pip", "install", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-input", "-r", lock]
    run(f"{name}: packages", command, log)
    run(f"{name}: trying it", [folder / "bin" / "python", "-c", client.probe], log)
    stamp.write_text(lock.read_text())
    return folder


def version_of(name: str) -> str:
    """The version of a client that its lock names."""
    package = {"langchain": "langchain-openai"}.get(name, name)
    lines = (HERE / "requirements" / f"{name}.txt").read_text().splitlines()
    return next(line.split("==")[1] for line in lines if line.startswith(f"{package}=="))


def _python(name: str, client: Client) -> str:
    """An interpreter that is new enough: this one, or one on PATH or of pyenv. Raises PeerError."""
    if sys.version_info >= client.python:
        return sys.executable
    major, least = client.python
    for minor in range(least, _NEWEST_MINOR):
        found = shutil.which(f"python{major}.{minor}") or _of_pyenv(f"{major}.{minor}")
        if found is not None:
            return found
    raise PeerError(f"{name} needs Python {major}.{least} or newer, and there is none on PATH")


def _of_pyenv(version: str) -> str | None:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(root.glob(f"versions/{version}.*/bin/python3"))
    return str(found[-1]) if found else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients.environments", description=__doc__.splitlines()[0]
    )
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"{', '.join(CLIENTS)}; all")
    args = parser.parse_args(arguments)
    if unknown := set(args.clients) - set(CLIENTS):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    for name in args.clients or CLIENTS:
        try:
            say(f"{name}: {environment(name)}")
        except PeerError as error:
            return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
