"""The run: all servers started once, then rounds; each round begins with another server.

Whoever's turn it is not stands still (SIGSTOP). A round gives every server the same requests at
the same moments, made from the round's number.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import Any

from benchmarks.default_settings import figures
from benchmarks.default_settings.loads import Run
from benchmarks.default_settings.plan import DEFAULT, Trial, Unknown, server_of
from benchmarks.peers.comparison import version_of
from benchmarks.peers.fleet import Fleet, Server
from benchmarks.peers.layout import Layout, say
from benchmarks.peers.machine import calibrate
from benchmarks.peers.recipes import Group
from benchmarks.peers.span_counter import SpanReceiver
from benchmarks.peers.store import Store
from lab.load.aggregator import Ended
from lab.load.errors import BenchError
from lab.load.result import BenchResult, Progress
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, PromptForm
from service.config.settings import ConfigError

GROUP = Group.BF16
_SAY_EVERY_S = 10.0
_SPANS_TIMEOUT_S = 10.0
_EXPORT_S = 1.0  # the exporter looks twice as often


class HttpClient:
    """Runs on one server, for one cell. Prompts are text, so every server tokenizes for itself,
    or ids where a model of ours has no text."""

    def __init__(self, server: Server, layout: Layout, seed: int, salt: int, as_text: bool) -> None:
        self._server, self._layout, self._as_text = server, layout, as_text
        self._seed, self._salt = seed, salt
        self.problems: list[str] = []
        self.replied: set[str] = set()
        """The ids, as the server said them, of counted requests with a whole reply."""

    def run(self, run: Run, errors_count: bool = False) -> BenchResult:
        """Raises BenchError and ConfigError as the load generator does."""
        self._salt += 1
        spec = BenchSpec(
            url=self._server.url,
            classes=run.classes,
            model=self._server.start.model,
            prompt_form=PromptForm.TEXT if self._as_text else PromptForm.IDS,
            tokenizer=str(self._layout.hf) if self._as_text else None,
            corpus=str(self._layout.corpus) if self._as_text else None,
            extra_body=self._extra_body(),
            duration_s=None if run.requests else run.seconds,
            requests=run.requests,
            warmup_requests=run.warmup_requests,
            warmup_s=run.warmup_s,
            drain_s=run.drain_s,
            seed=self._seed,
            salt=self._salt,
        )
        result = run_bench(spec, _teller(self._server.label), on_ended=self._ended)
        if result.partial:
            raise KeyboardInterrupt
        self.problems += figures.problems(result, run.classes, errors_count)
        return result

    def _ended(self, ended: Ended) -> None:
        if ended.counted and ended.reply.error_kind is None:
            self.replied.add(ended.reply.request_id)

    def _extra_body(self) -> dict[str, Any]:
        """Ours sends a chunk for a token without text too, or a gap would be of two tokens. Where
        models have no text, nearly every token of theirs has one."""
        each = {"logprobs": 0} if self._server.recipe.ours and self._as_text else {}
        return each | self._server.start.extra_body


def _teller(label: str) -> Callable[[Progress], None]:
    told_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal told_s
        if progress.elapsed_s - told_s >= _SAY_EVERY_S:
            told_s = progress.elapsed_s
            say(f"  {label}: {told_s:.0f} s, {progress.ok} replies, {progress.in_flight} open")

    return on_progress


def todo(store: Store, trial: Trial, number: int, rounds: int, running: list[str]) -> list[str]:
    """The cells of a trial that has one missing: only whole rounds are compared."""
    labels = [label for label in trial.labels if server_of(label) in running]
    numbers = range(1, rounds + 1) if trial.once else [number]
    done = any(store.has_round(GROUP, trial.load, one, labels) for one in numbers)
    return [] if done else labels


class Rounds:
    """Measures what is missing in a store."""

    def __init__(
        self,
        trials: list[Trial],
        rounds: int,
        layout: Layout,
        store: Store,
        receiver: SpanReceiver,
        as_text: bool,
    ) -> None:
        self._trials, self._rounds, self._layout = trials, rounds, layout
        self._store, self._receiver, self._as_text = store, receiver, as_text

    def run(self, servers: list[Server]) -> None:
        labels = [server.label for server in servers]
        if not any(self._todo(number, labels) for number in range(1, self._rounds + 1)):
            say("already measured")
            return
        with Fleet(servers) as fleet:
            for label, why in fleet.failed.items():
                self._store.add_failure(label, why)
            for server in fleet.running:
                self._store.data["failed"].pop(server.label, None)
                self._store.add_server(server.label, self._facts(server))
            for number in range(1, self._rounds + 1):
                self._round(fleet, number)

    def _todo(self, number: int, running: list[str]) -> list[tuple[Trial, list[str]]]:
        return [
            (trial, labels)
            for trial in self._trials
            if (labels := todo(self._store, trial, number, self._rounds, running))
        ]

    def _round(self, fleet: Fleet, number: int) -> None:
        missing = self._todo(number, [server.label for server in fleet.running])
        if not missing:
            return
        found = calibrate()
        say(f"round {number} of {self._rounds}: {found}")
        self._store.add_calibration(GROUP, number, "before", found)
        replied: set[str] = set()
        for trial, labels in missing:
            self._store.drop_round(GROUP, trial.load, number)
            turn = (number - 1) % len(labels)
            for label in labels[turn:] + labels[:turn]:
                replied |= self._cell(fleet, trial, label, number)
        self._check_traces(fleet, number, replied)

    def _cell(self, fleet: Fleet, trial: Trial, label: str, number: int) -> set[str]:
        """Measure and store one; the ids of ours that had a whole reply."""
        server = next(one for one in fleet.running if one.label == server_of(label))
        salt = 10 * (1000 * number + self._trials.index(trial))
        client = HttpClient(server, self._layout, number, salt, self._as_text)

        def known(load: str, figure: str) -> float:
            return self._known(load, figure, number)

        with fleet.turn(server):
            cell: dict[str, Any]
            try:
                values = figures.rounded(trial.measure(client, label, known))
                cell = {"figures": values, "checks": {"problems": client.problems}}
            except (BenchError, ConfigError, Unknown) as error:
                cell = {"error": str(error)}
        say(f"round {number} {trial.load} {label}: {_line(cell)}")
        self._store.add_cell(
            group=GROUP, load=trial.load, repetition=number, server=label, **cell
        )  # fmt: skip
        return client.replied if server.recipe.ours else set()

    def _known(self, load: str, figure: str, number: int) -> float:
        """The value of the same round, or of the one in which it was measured once."""
        cells = [
            cell
            for cell in self._store.data["cells"]
            if (cell["load"], cell["server"]) == (load, DEFAULT) and "figures" in cell
        ]
        cells.sort(key=lambda cell: bool(cell["repetition"] != number))
        value = cells[0]["figures"][figure] if cells else None
        if not value:
            raise Unknown(f"{load} was not measured")
        return float(value)

    def _check_traces(self, fleet: Fleet, number: int, replied: set[str]) -> None:
        """Tracing was on: the trace of each reply of ours was exported. The last of a server's
        leave in a moment that is nobody's cell."""
        for server in fleet.running:
            if server.recipe.ours:
                with fleet.turn(server):
                    time.sleep(_EXPORT_S)
        deadline_s = time.monotonic() + _SPANS_TIMEOUT_S
        while (missing := self._receiver.missing(replied)) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        kept = self._store.data.setdefault("traces", {})
        known = kept.get(str(number), {})  # of loads that were measured before
        known = known if "missing" in known else {"replies": 0, "missing": 0}
        kept[str(number)] = {
            "replies": known["replies"] + len(replied),
            "missing": known["missing"] + len(missing),
        }
        self._store.save()

    def _facts(self, server: Server) -> dict[str, Any]:
        return {
            "version": version_of(server, self._layout),
            "budget_tokens": server.budget,
            "command": shlex.join(server.start.command).replace(str(server.port), "PORT"),
            "environment": server.start.environment,
            "resident_mib": round(server.resident_mib()),
        }


def _line(cell: dict[str, Any]) -> str:
    if "error" in cell:
        return f"not measured: {cell['error']}"
    shown = cell["figures"].items()
    text = ", ".join(f"{name} {one:g}" for name, one in shown if one and not isinstance(one, list))
    found = cell["checks"]["problems"]
    return f"{text}; DOES NOT COUNT: {'; '.join(found)}" if found else text
