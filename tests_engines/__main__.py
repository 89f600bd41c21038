"""Contract tests against the engines that phasescope attaches to.

    python -m tests_engines [--versions 0.32.0,0.31.0] [--no-live] [-- PYTEST ARGUMENTS]

Each version runs in an environment of its own (tests_engines/environments.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.layout import REPOSITORY, Layout, PeerError, default_root, fail, say
from tests_engines.environments import NEWEST, OLDER, Environment, environment

_HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Contract tests against vLLM.")
    parser.add_argument("--versions", default=",".join((NEWEST, *OLDER)))
    parser.add_argument("--no-live", action="store_true", help="start no server")
    parser.add_argument("--root", type=Path, default=default_root(), help="where engines live")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    args = parser.parse_args()
    failed = []
    for version in args.versions.split(","):
        try:
            found = environment(Layout(args.root.resolve()), version)
        except PeerError as error:
            return fail(error)
        say(f"== vLLM {version}")
        if _run(found, args.pytest + (["-m", "not live"] if args.no_live else [])):
            failed.append(version)
    if failed:
        say(f"failed with vLLM {', '.join(failed)}")
    return 1 if failed else 0


def _run(found: Environment, more: list[str]) -> int:
    command = [str(found.python), "-m", "pytest", "-c", str(_HERE / "pytest.ini")]
    command += ["--rootdir", str(REPOSITORY), str(_HERE / "on_vllm"), *more]
    variables = {**os.environ, **found.variables}
    return subprocess.run(command, env=variables, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
