"""SIGKILL and SIGSTOP of real processes in every state of a transfer: what the client got, what is
left behind.

    python -m benchmarks.disaggregated.kills

Two nodes (one computes prompts, one decodes) and a gateway serve `dummy:tiny`. For each state of
each side, each victim (engine or node process of the one and of the other, gateway) and each signal
one request is sent; when a transfer comes into the state, the engine's loop is held by a hook
(`hooks/sitecustomize.py`), the victim gets the signal, and the loop goes on. In `fencing` the
client has gone away before. Then is checked:

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
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.disaggregated.states import Held, StateSocket
from benchmarks.machine import machine
from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.server import Server, eventually

RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_kills.json"
HOOKS = Path(__file__).parent / "hooks"
STATES = {
    "decode": ("reserving", "filling", "verifying", "admitting", "fencing"),
    "prefill": ("computing", "flushing", "sealed", "fencing"),
}
NODES = {"node of prefill": "prefill", "node of decode": "decode"}
"""Processes beside an engine: the gateway's frames and HTTP are theirs. A replica of Ray Serve is
the parent of one, which ends with it."""
VICTIMS = ("prefill", "decode", "gateway", *NODES)
SIGNALS = ("SIGKILL", "SIGSTOP")
STOPPED_S = {"prefill": 7.0, "decode": 7.0, "gateway": 3.0, **dict.fromkeys(NODES, 7.0)}
"""Longer than a silent peer is waited for (5 s), shorter than a silent gateway (10 s)."""
MODEL = ("--model", "dummy:tiny")
ENGINE = (*MODEL, "--max-batched-tokens", "32", "--max-num-seqs", "8", "--max-model-len", "512")
BODY = {"prompt": "q" * 300, "max_tokens": 24, "temperature": 0.9, "seed": 5, "ignore_eos": True}
COUNTS = ("phasescope_kv_blocks_quarantined", "phasescope_kv_blocks_held")


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


class Fleet:
    """The processes. A gateway or a node that was killed is replaced."""

    def __init__(self, folder: Path, states: StateSocket, stack: contextlib.ExitStack) -> None:
        env = {"PYTHONPATH": os.pathsep.join((str(HOOKS), os.environ.get("PYTHONPATH", "")))}
        env["PHASESCOPE_KV_STATES"] = str(states.path)
        self._folder, self._env, self._stack = folder, env, stack
        self.nodes = {role: self._node(role) for role in ("prefill", "decode")}
        self._file = FleetFile(folder, self.nodes.values())
        self.states = states
        self.expected = self._alone()
        self.gateway = self._start()

    def _alone(self) -> str:
        with Server(*ENGINE) as server:
            return str(server.client.post("/v1/completions", json=BODY).json()["choices"])

    def _node(self, role: str) -> Node:
        node = Node(self._folder, *ENGINE, "--role", role, env=self._env)
        return self._stack.enter_context(node)

    def _start(self) -> FleetGateway:
        split = ("--prefill-split", "always")
        return self._stack.enter_context(FleetGateway(self._file, *MODEL, *split))

    def pid_of(self, victim: str) -> int:
        if victim == "gateway":
            return int(self.gateway.process.pid)
        if victim in NODES:
            return int(self.nodes[NODES[victim]].process.pid)
        return int(self.nodes[victim].snapshot()["engine_pid"])

    def is_ready(self) -> bool:
        return set(self.gateway.states().values()) == {"ready"}

    def repair(self) -> None:
        """Everything runs again."""
        if self.gateway.process.poll() is not None:
            self.gateway = self._start()
        ended = [role for role, node in self.nodes.items() if node.process.poll() is not None]
        for role in ended:
            self.nodes[role] = self._node(role)
        if ended:
            nodes = enumerate(self.nodes.values())
            self._file.write({f"n{index}": node.address for index, node in nodes})
        eventually(self.is_ready, "engines ready", 60)

    def left_over(self) -> list[str]:
        """What should be gone when nothing is asked."""
        return [f"{role} is not empty" for role in self.nodes if not self._is_empty(role)]

    def _is_empty(self, role: str) -> bool:
        node = self.nodes[role]
        text = node.client.get("/metrics").text
        counts = [float(x) for name in COUNTS for x in re.findall(rf"^{name} (\S+)", text, re.M)]
        return node.is_empty() and len(counts) == len(COUNTS) and not any(counts)


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
    request = Request(fleet.gateway.url, request_id)
    held: Held | None = None
    with fleet.states.watching() as came:
        request.start()
        for held in came:
            if case.state == "fencing" and (held.side, held.state) == ("decode", "filling"):
                cancel(fleet, request_id)
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


def cancel(fleet: Fleet, request_id: str) -> None:
    """An operator ends the request, in the state in which blocks are on their way."""
    fleet.gateway.client.delete(f"/v1/requests/{request_id}")


def strike(fleet: Fleet, case: Case, pid: int, held: Held, request: Request) -> None:
    """The signal, then everything goes on; what was stopped goes on later."""
    os.kill(pid, getattr(signal, case.signal))
    held.go()
    if case.signal == "SIGKILL":
        if case.victim == "gateway":
            fleet.gateway.process.wait()
        elif case.victim in NODES:
            fleet.nodes[NODES[case.victim]].process.wait()
        return
    with contextlib.suppress(TimeoutError):
        fleet.states.pass_on(STOPPED_S[case.victim])
    os.kill(pid, signal.SIGCONT)


def judge(fleet: Fleet, case: Case, request: Request, request_id: str) -> None:
    """Compare what is with what must be."""
    is_killed = case.signal == "SIGKILL"
    is_cancelled = case.state == "fencing"
    right = {"text"}
    if is_cancelled:
        right = {"deleted"}
    if is_killed and case.victim in ("decode", "node of decode"):
        right |= {"engine_died"}
        right -= set() if is_cancelled else {"text"}
    if not is_killed and case.victim == "node of decode":
        right |= {"engine_died"}  # a node that is silent for five seconds is given up
    if is_killed and case.victim == "gateway":
        # who deleted it may have been answered before
        right = {"RemoteProtocolError", "ReadError"} | ({"deleted"} if is_cancelled else set())
    case.answer = "text" if request.answer == fleet.expected else request.answer
    if case.answer not in right:
        case.wrong.append(f"the client got {case.answer[:80]!r}, not {sorted(right)}")
    if not (is_killed and case.victim == "gateway"):
        found = fleet.gateway.facts_of(request_id)
        if found["ledger"]["residue_ns"]:
            case.wrong.append(f"the parts differ by {found['ledger']['residue_ns']} ns")
    fleet.repair()
    try:
        eventually(lambda: not fleet.left_over(), "empty nodes", 30)
    except AssertionError:
        case.wrong += fleet.left_over()
    again = Request(fleet.gateway.url, f"{request_id}-again")
    again.run()
    if again.answer != fleet.expected:
        case.wrong.append(f"the next request got {again.answer[:80]!r}")


def cases() -> Iterator[Case]:
    for side, states in STATES.items():
        for state in states:
            for victim in VICTIMS:
                for name in SIGNALS:
                    yield Case(side, state, victim, name)


def main() -> int:
    """The exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="run cases whose words contain this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    wanted = [c for c in cases() if chosen.only in f"{c.side} {c.state} {c.victim} {c.signal}"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        states = stack.enter_context(StateSocket(folder / "states"))
        fleet = Fleet(folder, states, stack)
        for number, case in enumerate(wanted):
            try:
                run(fleet, case, number)
            except AssertionError as error:
                case.wrong.append(str(error)[:200])
            print(json.dumps(asdict(case)), flush=True)
            report(wanted[: number + 1], chosen.out)
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
