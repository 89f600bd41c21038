"""SIGKILL and SIGSTOP of real processes in every state of a transfer: what the client got, what is
left behind.

    python -m benchmarks.disaggregated.kills [--ray]

Two nodes (one computes prompts, one decodes) and a gateway serve `dummy:tiny`. For each state of
each side, each victim (engine or node process of the one and of the other, gateway; with `--ray`
the replicas of a real Ray Serve that are their parents) and each signal one request is sent; when a
transfer comes into the state, the engine's loop is held by a hook (`hooks/sitecustomize.py`), the
victim gets the signal, and the loop goes on. In `fencing` the client has gone away before. Then is
checked:

- the client has one answer: the text of one engine, or one typed error where its engine was killed
  or its node was silent for too long
- the gateway has one end of the request, whose parts sum to its time exactly
- no block is used, quarantined or held at any node, and the next request has the right text
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.disaggregated.processes import (
    BODY,
    NODES,
    REPLICAS,
    Fleet,
    OnRay,
    Processes,
)
from benchmarks.disaggregated.states import Held, StateSocket
from benchmarks.machine import machine
from tests.support.servers.server import eventually

RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_kills.json"
RAY_RESULTS = RESULTS.with_name("disaggregated_kills_ray.json")
STATES = {
    "decode": ("reserving", "filling", "verifying", "admitting", "fencing"),
    "prefill": ("computing", "flushing", "sealed", "fencing"),
}
VICTIMS = ("prefill", "decode", "gateway", *NODES)
SIGNALS = ("SIGKILL", "SIGSTOP")
STOPPED_S = 7.0
"""Longer than a silent peer is waited for (5 s), shorter than a silent gateway (10 s)."""
GATEWAY_STOPPED_S = 3.0
GATEWAYS, DECODERS = (
    {what, f"replica of {what}", f"node of {what}"} for what in ("gateway", "decode")
)


@dataclass(slots=True)
class Case:
    """One request, and what came of it. `wrong` says in words what should not be."""

    side: str
    state: str
    victim: str
    signal: str
    answer: str = ""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        return f"{self.side} {self.state} {self.victim} {self.signal}"


class Request(threading.Thread):
    """One request; `answer` is a text, an error's code, or how the connection ended."""

    def __init__(self, url: str, request_id: str) -> None:
        super().__init__(daemon=True)
        self._client = httpx.Client(base_url=url, timeout=60)
        self._request_id = request_id
        self.answer = ""

    def run(self) -> None:
        try:
            headers = {"x-request-id": self._request_id}
            found = self._client.post("/v1/completions", json=BODY, headers=headers)
        except (httpx.HTTPError, RuntimeError) as error:
            self.answer = type(error).__name__
            return
        is_text = found.status_code == 200
        self.answer = str(found.json()["choices"]) if is_text else found.json()["error"]["code"]

    def leave(self) -> None:
        """The client goes away."""
        self._client.close()


def run(fleet: Fleet, case: Case, number: int) -> None:
    fleet.repair()
    begun = time.monotonic()
    pid, request_id = fleet.pid_of(case.victim), f"kill-{number}"
    request = Request(fleet.url, request_id)
    held: Held | None = None
    with fleet.states.watching() as came:
        request.start()
        for held in came:
            if case.state == "fencing" and (held.side, held.state) == ("decode", "filling"):
                fleet.delete(request_id)
            if (held.side, held.state) == (case.side, case.state):
                break
            held.go()
        else:
            case.wrong.append("the state did not come")
            return
        strike(fleet, case, pid, held, request)
    request.join(60)
    judge(fleet, case, request, request_id)
    case.seconds = round(time.monotonic() - begun, 1)


def strike(fleet: Fleet, case: Case, pid: int, held: Held, request: Request) -> None:
    """The signal, then everything goes on; what was stopped goes on later."""
    os.kill(pid, getattr(signal, case.signal))
    held.go()
    if case.signal == "SIGKILL":
        fleet.wait_ended(case.victim)
        return
    with contextlib.suppress(TimeoutError):
        fleet.states.pass_on(GATEWAY_STOPPED_S if case.victim in GATEWAYS else STOPPED_S)
    os.kill(pid, signal.SIGCONT)


def judge(fleet: Fleet, case: Case, request: Request, request_id: str) -> None:
    """Compare what is with what must be."""
    is_killed = case.signal == "SIGKILL"
    is_cancelled = case.state == "fencing"
    right = {"text"}
    if is_cancelled:
        right = {"deleted"}
    if is_killed and case.victim in DECODERS:
        right |= {"engine_died"}
        right -= set() if is_cancelled else {"text"}
    if not is_killed and case.victim == "node of decode":
        right |= {"engine_died"}  # a node that is silent for five seconds is given up
    if is_killed and case.victim in GATEWAYS:
        # who deleted it may have been answered before
        right = {"RemoteProtocolError", "ReadError"} | ({"deleted"} if is_cancelled else set())
    case.answer = "text" if request.answer == fleet.expected else request.answer
    if case.answer not in right:
        case.wrong.append(f"the client got {case.answer[:80]!r}, not {sorted(right)}")
    if not (is_killed and case.victim in GATEWAYS):
        found = fleet.facts_of(request_id)
        if found["ledger"]["residue_ns"]:
            case.wrong.append(f"the parts differ by {found['ledger']['residue_ns']} ns")
    fleet.repair()
    try:
        eventually(lambda: not fleet.left_over(), "empty nodes", 30)
    except AssertionError:
        case.wrong += fleet.left_over()
    again = Request(fleet.url, f"{request_id}-again")
    again.run()
    if again.answer != fleet.expected:
        case.wrong.append(f"the next request got {again.answer[:80]!r}")


def cases(victims: Iterable[str]) -> Iterator[Case]:
    for side, states in STATES.items():
        for state in states:
            for victim in victims:
                for name in SIGNALS:
                    yield Case(side, state, victim, name)


def main() -> int:
    """The exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="run cases whose words contain this")
    parser.add_argument("--ray", action="store_true", help="kill replicas of a real Ray Serve")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    out = chosen.out or (RAY_RESULTS if chosen.ray else RESULTS)
    victims = tuple(REPLICAS) if chosen.ray else VICTIMS
    wanted = [
        c for c in cases(victims) if chosen.only in f"{c.side} {c.state} {c.victim} {c.signal}"
    ]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        states = stack.enter_context(StateSocket(folder / "states"))
        fleet: Fleet = OnRay(states, stack) if chosen.ray else Processes(folder, states, stack)
        for number, case in enumerate(wanted):
            try:
                run(fleet, case, number)
            except AssertionError as error:
                case.wrong.append(str(error)[:200])
            print(json.dumps(asdict(case)), flush=True)
            report(wanted[: number + 1], out)
    return int(any(case.wrong for case in wanted))


def report(found: list[Case], out: Path) -> None:
    wrong = [asdict(case) for case in found if case.wrong]
    answers: dict[str, dict[str, int]] = {}
    for case in found:
        counts: dict[str, Any] = answers.setdefault(f"{case.signal} of {case.victim}", {})
        counts[case.answer[:40]] = counts.get(case.answer[:40], 0) + 1
    summary = {
        "machine": machine(),
        "cases": len(found),
        "states": len({(case.side, case.state) for case in found}),
        "wrong": wrong,
        "answers": answers,
    }
    out.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
