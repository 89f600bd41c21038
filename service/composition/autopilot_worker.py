"""Runs the autopilot beside the server: gives it the time and the verdict, searches in a child
process of the lowest priority, and sets limits through their owner.

A search that fails is recorded, and the autopilot asks again later; no error ends the thread.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

import msgspec

from diagnosis.autopilot.bounds import Bounds
from diagnosis.autopilot.desk import Ask, Output, Put
from diagnosis.autopilot.pilot import Pilot
from diagnosis.autopilot.proposal import Values
from diagnosis.autopilot.view import AutopilotView, view_of
from diagnosis.settings_search.answer import SettingsAnswer
from service.composition.replay_child import ChildFailed, ReplayChild
from service.composition.worker_failures import WorkerFailure, WorkerFailures, reason_of
from service.engine.limits_record import LimitError
from service.gateway.engine_client.runtime_limits import EngineGone
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import AutopilotDecision, FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.metrics.catalog import harm as catalog
from telemetry.metrics.metric import Metric
from telemetry.pump.pump import Pump
from telemetry.requests.phases import RequestTimeline
from telemetry.stats.snapshot import AutopilotLine

log = logging.getLogger("phasescope.autopilot")

_POLL_S = 0.5
_DECISIONS_KEPT = 32
_LOUD = (AutopilotDecision.APPLIED, AutopilotDecision.KEPT, AutopilotDecision.ROLLED_BACK)
Sample = tuple[dict[str, str], float]


class AutopilotWorker:
    """`verdict` is called under the pump's lock, `put` on the worker's thread; `put` returns when
    the limits are in force, and raises LimitError, EngineGone or TimeoutError. `arguments` follow
    `diagnose DUMP`. It is a fold of the pump and a listener to timelines."""

    def __init__(
        self,
        clock: Clock,
        pump: Pump,
        pilot: Pilot,
        mode: str,
        bounds: Bounds,
        verdict: Callable[[], str],
        put: Callable[[Values, str], None],
        child: ReplayChild,
        arguments: Sequence[str],
    ) -> None:
        self.lane = Lane(source=FactSource.OTHER)
        self.failures = WorkerFailures("the autopilot's search failed", catalog.AUTOPILOT_FAILURES)
        self.searches = 0
        self._clock, self._pump, self._pilot = clock, pump, pilot
        self._mode, self._bounds = mode, bounds
        self._verdict, self._put = verdict, put
        self._child, self._arguments = child, arguments
        self._counts: Counter[AutopilotDecision] = Counter()
        self._last: deque[AutopilotDecided] = deque(maxlen=_DECISIONS_KEPT)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phasescope-autopilot", daemon=True)

    # Called by the pump, under its lock

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._pilot.on_fact(fact)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        self._pilot.on_timeline(timeline)

    # Called by any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and a search that runs; takes at most 5 s."""
        self._stopped.set()
        self._child.kill()
        if self._thread.is_alive():
            self._thread.join(5)

    def line(self) -> AutopilotLine:
        """For the snapshot, which is taken under the pump's lock."""
        last = self._last[-1] if self._last else None
        return AutopilotLine(
            mode=self._mode,
            state=self._pilot.state.value,
            decision=None if last is None else last.decision.value,
            limits={} if last is None else last.limits,
            why="" if last is None else last.why,
            at_ns=None if last is None else last.at_ns,
        )

    def view(self) -> AutopilotView:
        with self._pump.caught_up():
            return view_of(
                self._pilot,
                self._mode,
                self._bounds,
                tuple(self._last),
                self._clock.now_ns(),
                searches=self.searches,
                search_cpu_s=self._child.cpu_s,
                failure=self.failures.last,
            )

    def families(self) -> list[tuple[Metric, list[Sample]]]:
        """Called under the pump's lock."""
        counts = [({"decision": o.value}, float(self._counts[o])) for o in AutopilotDecision]
        return [(catalog.AUTOPILOT_DECISIONS, counts), *self.failures.families()]

    # On the worker's thread

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                self.tick()
            except Exception:
                log.exception("the autopilot continues after an error")

    def tick(self) -> None:
        """One look; the thread takes two a second."""
        with self._pump.lock:
            found = self._pilot.tick(self._clock.now_ns(), self._verdict())
            for one in found:
                if isinstance(one, AutopilotDecided):
                    self._last.append(one)
                    self._counts[one.decision] += 1
        for one in found:
            self._carry_out(one)

    def _carry_out(self, one: Output) -> None:
        match one:
            case AutopilotDecided():
                self.lane.append(one)
                names = ", ".join(one.limits)
                level = logging.WARNING if one.decision in _LOUD else logging.INFO
                log.log(level, "autopilot: %s %s: %s", one.decision.value, names, one.why)
            case Put():
                self._set(one)
            case Ask():
                threading.Thread(
                    target=self._search,
                    args=(one.number,),
                    name="phasescope-search",
                    daemon=True,
                ).start()

    def _set(self, wish: Put) -> None:
        try:
            self._put(wish.values, wish.why)
        except LimitError as error:
            log.info("autopilot: %s", error)
            with self._pump.lock:
                self._pilot.on_refused()
        except (EngineGone, TimeoutError, CancelledError, RuntimeError) as error:
            log.info("autopilot: not confirmed: %s", type(error).__name__)  # it looks by itself

    def _search(self, number: int) -> None:
        """On a thread of its own: the autopilot watches in the meantime."""
        before_s = self._child.cpu_s
        answer: SettingsAnswer | None = None
        self.searches += 1
        try:
            said = self._child.run(self._arguments)
            answer = msgspec.json.decode(said, type=SettingsAnswer)
            self.failures.forget()
        except ChildFailed as failure:
            self._failed(failure.reason, str(failure))
        except msgspec.MsgspecError as error:
            self._failed(WorkerFailure.REPLAY, str(error))
        except Exception as error:
            self._failed(reason_of(error), f"{type(error).__name__}: {error}")
        with self._pump.lock:
            cpu_s = self._child.cpu_s - before_s
            self._pilot.on_answer(number, answer, cpu_s, self._clock.now_ns())

    def _failed(self, reason: WorkerFailure, error: str) -> None:
        if not self._stopped.is_set():
            self.failures.note(reason, error)
