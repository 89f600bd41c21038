"""The fleets whose processes `kills` kills: on this machine, or placed by a real Ray Serve.

Both have a node that computes prompts, one that decodes, and a gateway, and hold an engine's loop
in the states of a transfer (`hooks/sitecustomize.py`). What was killed is replaced: by us in the
first, by Ray in the second.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx

from benchmarks.disaggregated.states import StateSocket
from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.server import Server, eventually
from tests_fleet.cluster import Cluster, is_gone
from tests_fleet.cluster import Fleet as RayServeFleet

HOOKS = Path(__file__).parent / "hooks"
MODEL = ("--model", "dummy:tiny")
LIMITS = ("--max-batched-tokens", "32", "--max-num-seqs", "8", "--max-model-len", "512")
BODY = {"prompt": "q" * 300, "max_tokens": 24, "temperature": 0.9, "seed": 5, "ignore_eos": True}
COUNTS = ("phasescope_kv_blocks_quarantined", "phasescope_kv_blocks_held")
NODES = {"node of prefill": "prefill", "node of decode": "decode"}
"""Processes beside an engine: the gateway's frames and HTTP are theirs."""
REPLICAS = {f"replica of {what}": what for what in ("prefill", "decode", "gateway")}
"""Roles of Ray Serve's replicas: the parent of a node or of the gateway, which ends with it."""
ROLES = ("prefill", "decode")


class Fleet(Protocol):
    """Processes that can be killed. `expected` is the text of one engine."""

    states: StateSocket
    expected: str

    @property
    def url(self) -> str:
        """The gateway's."""
        ...

    def pid_of(self, victim: str) -> int: ...

    def wait_ended(self, victim: str) -> None:
        """Until what SIGKILL was sent to is gone, and with it what ends with it. `pid_of` was asked
        for this victim last."""
        ...

    def repair(self) -> None:
        """Everything runs again."""
        ...

    def facts_of(self, request_id: str) -> dict[str, Any]:
        """`/debug/requests/ID` at the gateway, once the request has ended."""
        ...

    def delete(self, request_id: str) -> None:
        """An operator ends a request."""
        ...

    def left_over(self) -> list[str]:
        """What should be gone when nothing is asked."""
        ...


def text_of_one_engine() -> str:
    with Server(*MODEL, *LIMITS) as server:
        return str(server.client.post("/v1/completions", json=BODY).json()["choices"])


def hooked(states: StateSocket, before: Mapping[str, str]) -> dict[str, str]:
    """Variables with which an engine tells its states to `states`."""
    path = os.pathsep.join((str(HOOKS), before.get("PYTHONPATH", "")))
    return {"PYTHONPATH": path, "PHASESCOPE_KV_STATES": str(states.path)}


def counts_of(metrics: str) -> list[float]:
    return [float(x) for name in COUNTS for x in re.findall(rf"^{name} (\S+)", metrics, re.M)]


class Processes:
    """The processes of this machine. A gateway or a node that was killed is replaced."""

    def __init__(self, folder: Path, states: StateSocket, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._env = hooked(states, os.environ)
        self.nodes = {role: self._node(role) for role in ROLES}
        self._file = FleetFile(folder, self.nodes.values())
        self.states = states
        self.expected = text_of_one_engine()
        self.gateway = self._start()

    @property
    def url(self) -> str:
        return self.gateway.url

    def _node(self, role: str) -> Node:
        node = Node(self._folder, *MODEL, *LIMITS, "--role", role, env=self._env)
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

    def wait_ended(self, victim: str) -> None:
        if victim == "gateway":
            self.gateway.process.wait()
        elif victim in NODES:
            self.nodes[NODES[victim]].process.wait()

    def facts_of(self, request_id: str) -> dict[str, Any]:
        return self.gateway.facts_of(request_id)

    def delete(self, request_id: str) -> None:
        self.gateway.client.delete(f"/v1/requests/{request_id}")

    def _is_ready(self) -> bool:
        return set(self.gateway.states().values()) == {"ready"}

    def repair(self) -> None:
        if self.gateway.process.poll() is not None:
            self.gateway = self._start()
        ended = [role for role, node in self.nodes.items() if node.process.poll() is not None]
        for role in ended:
            self.nodes[role] = self._node(role)
        if ended:
            nodes = enumerate(self.nodes.values())
            self._file.write({f"n{index}": node.address for index, node in nodes})
        eventually(self._is_ready, "engines ready", 60)

    def left_over(self) -> list[str]:
        return [f"{role} is not empty" for role in self.nodes if not self._is_empty(role)]

    def _is_empty(self, role: str) -> bool:
        node = self.nodes[role]
        counts = counts_of(node.client.get("/metrics").text)
        return node.is_empty() and len(counts) == len(COUNTS) and not any(counts)


class OnRay:
    """Placed by Ray Serve, which replaces what was killed, under another name."""

    def __init__(self, states: StateSocket, stack: contextlib.ExitStack) -> None:
        cluster = Cluster()
        cluster.variables |= hooked(states, cluster.variables)
        stack.enter_context(cluster)
        self._fleet = RayServeFleet(cluster)
        stack.callback(self._fleet.client.close)
        self.states, self.expected = states, text_of_one_engine()
        self._below = 0  # the node or gateway below the replica that `pid_of` gave last
        self._deploy(cluster)
        stack.callback(cluster.phasescope, "stop")
        self.repair()

    def _deploy(self, cluster: Cluster) -> None:
        flags = [*LIMITS, "--executor", "native", "--dump-dir", str(cluster.folder / "dumps")]
        listed = ", ".join(f'"{flag}"' for flag in flags)
        lines = [
            'key_file = "fleet.key"', f'model = "{MODEL[1]}"', "drain_timeout_s = 5",
            "[gateways]", f"port = {self._fleet.port}", 'flags = ["--prefill-split", "always"]',
        ]  # fmt: skip
        for role in ROLES:
            lines += [f"[engines.{role}]", f'role = "{role}"', f"flags = [{listed}]"]
        self._fleet.file.write_text("\n".join([*lines, ""]))
        done = cluster.phasescope("deploy", str(self._fleet.file))
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._fleet.port}"

    def pid_of(self, victim: str) -> int:
        what = REPLICAS[victim]
        if what == "gateway":
            wanted = str(self._fleet.port)
            (found,) = [one for one in self._fleet.servers() if wanted in one.arguments]
        else:
            found = self._fleet.node_of(self._name_of(what))
        self._below = found.pid
        return found.parent

    def wait_ended(self, victim: str) -> None:
        eventually(lambda: is_gone(self._below), f"the end of what is below the {victim}", 60)

    def _name_of(self, role: str) -> str:
        (found,) = [name for name in self._fleet.ready() if name.startswith(f"{role}-")]
        return found

    def repair(self) -> None:
        eventually(self._is_whole, "a whole fleet", 180)

    def _is_whole(self) -> bool:
        names = self._fleet.ready()
        running = {word for one in self._fleet.servers() for word in one.arguments}
        return (
            sorted(name.partition("-")[0] for name in names) == sorted(ROLES) and names <= running
        )

    def facts_of(self, request_id: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            answer = self._fleet.client.get(f"/debug/requests/{request_id}")
            body: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
            return body if body.get("outcome", "running") != "running" else None

        found: dict[str, Any] = eventually(ended, f"the end of {request_id}")
        return found

    def delete(self, request_id: str) -> None:
        self._fleet.client.delete(f"/v1/requests/{request_id}")

    def left_over(self) -> list[str]:
        return [f"{role} is not empty" for role in ROLES if not self._is_empty(role)]

    def _is_empty(self, role: str) -> bool:
        words = self._fleet.node_of(self._name_of(role)).arguments
        port = words[words.index("--port") + 1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            now = client.get("/debug/snapshot").json()
            counts = counts_of(client.get("/metrics").text)
        used = (now["running"], now["waiting"], now["blocks_used"])
        return used == (0, 0, 0) and len(counts) == len(COUNTS) and not any(counts)
