"""An environment with Ray, made when it is first asked for.

    python -m tests_fleet.environments

Ray and what only Ray needs lie in an environment of their own; everything else in it is that of the
interpreter that makes it, which is left as it is. The lock is installed without resolving anything:
its versions fit constraints.txt.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.layout import PeerError, fail, run, say

ROOT = Path(__file__).resolve().parents[1]
LOCK = Path(__file__).resolve().parent / "requirements.txt"


def environment(folder: Path | None = None) -> Path:
    """Its folder, by default `$XDG_CACHE_HOME/phasescope/fleet`. Raises PeerError, with what to do,
    if it cannot be made."""
    folder = folder or _default()
    stamp, python = folder / "installed.txt", folder / "bin" / "python"
    wanted = f"{LOCK.read_text()}# {sys.executable}\n"
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    log = folder.parent / "logs" / "install-fleet.log"
    run("fleet: environment", [sys.executable, "-m", "venv", "--clear", folder], log)
    command: list[object] = [python, "-m", "pip", "install", "--no-deps", "--no-input"]
    run("fleet: packages", [*command, "--disable-pip-version-check", "-r", LOCK], log)
    (own,) = folder.glob("lib/python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    run("fleet: trying it", [python, "-c", "import ray.serve, msgspec"], log)
    stamp.write_text(wanted)
    return folder


def variables() -> dict[str, str]:
    """The environment of all that runs in it: this source, and no report of usage to anyone."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


def _default() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "fleet"


def main() -> int:
    try:
        say(f"fleet: {environment()}")
    except PeerError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
