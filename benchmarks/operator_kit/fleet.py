"""Two real servers as a fleet: `phasescope diagnose` says "one bad replica", then "bad traffic".

Both servers have the same traffic. First nothing is wrong. Then the engine of one is stopped for
half of the time, 20 to 70 ms at a time, from outside: the verdict must be that this one is bad.
Then one tenant sends both long prompts: the verdict must be bad traffic, with that tenant. Takes
three minutes, on a machine with two cores or more.

    python -m benchmarks.operator_kit.fleet [--model dummy:tiny] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.starter import Started, serving
from lab.load.processes import ended

FLAGS = ("--executor", "native", "--no-root-cause", "--drain-timeout", "1", "--max-batched-tokens",
         "2048")  # fmt: skip
CALM = ("--rate", "3", "--lengths", "64/64")
BULKY = ("--rate", "1.5", "--lengths", "1900/4")  # light for the machine, not for a step
STOPPED_SHARE = "0.5"
CALM_S, LONGEST_S, EVERY_S = 30.0, 60.0, 2.0


class NotShown(Exception):
    """What this script shows did not hold; the message says what was seen."""


@contextlib.contextmanager
def load(server: Started, tenant: str, *flags: str) -> Iterator[None]:
    """Traffic of one tenant, until it is left."""
    words = ("bench", server.url, *flags, "--duration", "600", "--header", f"x-tenant:{tenant}")
    command = [sys.executable, "-m", "service.cli.main", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        ended(process)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process is stopped and continued from outside."""
    command = [sys.executable, "-m", "lab.drills.helpers", "stopper"]
    helper = subprocess.Popen(
        [*command, str(pid), STOPPED_SHARE, "1", "-1"], stdin=subprocess.PIPE, text=True
    )
    assert helper.stdin is not None
    try:
        helper.stdin.write("begin\n")
        helper.stdin.flush()
        yield
    finally:
        helper.stdin.close()
        helper.wait(30)


def diagnosed(*servers: Started) -> dict[str, Any]:
    """The command as an operator types it."""
    urls = [server.url for server in servers]
    command = [sys.executable, "-m", "service.cli.main", "diagnose", "--json", *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise NotShown(f"diagnose ended with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def until(
    what: str, holds: Callable[[dict[str, Any]], bool], *servers: Started
) -> tuple[float, dict[str, Any]]:
    """Seconds to the first answer that holds, and the answer. Raises NotShown."""
    began_s = time.monotonic()
    said = ""
    while time.monotonic() - began_s < LONGEST_S:
        found = diagnosed(*servers)
        said = " / ".join(found["said"])
        if holds(found["verdict"]):
            seconds = time.monotonic() - began_s
            print(f"{what}, after {seconds:.0f} s: {said}", flush=True)
            return seconds, found
        time.sleep(EVERY_S)
    raise NotShown(f"{what}: not said within {LONGEST_S:.0f} s; last it said: {said}")


def is_scope(scope: str) -> Callable[[dict[str, Any]], bool]:
    return lambda verdict: bool(verdict["scope"] == scope)


def names_the_machine_of(server: Started) -> Callable[[dict[str, Any]], bool]:
    """It alone is bad, by a finding about its machine."""
    return lambda verdict: (
        verdict["scope"] == "bad_replica"
        and [(one["name"], one["side"]) for one in verdict["bad"]] == [(server.url, "machine")]
    )


def names_the_tenant(tenant: str) -> Callable[[dict[str, Any]], bool]:
    """Bad traffic, with that tenant in common."""
    return lambda verdict: (
        verdict["scope"] == "bad_traffic"
        and tenant in [one["name"] for one in verdict["in_common"] if "tenant" in one["role"]]
    )


def engine_pid(server: Started) -> int:
    with urllib.request.urlopen(f"{server.url}/debug/snapshot", timeout=10) as answer:
        return int(json.loads(answer.read())["engine_pid"])


def show(good: Started, bad: Started) -> dict[str, Any]:
    """Raises NotShown."""
    with load(good, "blue", *CALM), load(bad, "blue", *CALM):
        print(f"{good.url} and {bad.url}: {CALM_S:.0f} s of calm traffic", flush=True)
        time.sleep(CALM_S)
        _, calm = until("calm", is_scope("healthy"), good, bad)
        with stopped(engine_pid(bad)):
            what = f"{bad.url} is stopped half of the time"
            bad_s, found = until(what, names_the_machine_of(bad), good, bad)
        is_named = names_the_machine_of(bad)
        recovered_s, _ = until("it runs again", lambda said: not is_named(said), good, bad)
        with load(good, "bulk", *BULKY), load(bad, "bulk", *BULKY):
            what = "one tenant sends both long prompts"
            bulk_s, bulky = until(what, names_the_tenant("bulk"), good, bad)
    return {
        "calm": calm["said"],
        "bad_replica": {"after_s": round(bad_s, 1), "said": found["said"]},
        "recovered_after_s": round(recovered_s, 1),
        "bad_traffic": {"after_s": round(bulk_s, 1), "said": bulky["said"]},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="dummy:tiny", help="what both servers serve")
    parser.add_argument("--out", type=Path, help="write what was said as JSON")
    args = parser.parse_args()
    try:
        flags = ("--model", args.model, *FLAGS)
        with serving(*flags) as good, serving(*flags) as bad:
            found = show(good, bad)
    except NotShown as error:
        print(f"not shown: {error}", file=sys.stderr)
        return 1
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
