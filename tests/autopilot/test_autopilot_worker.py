"""The autopilot's worker: a search in a child, limits set by their owner, decisions."""

from __future__ import annotations

import sys
from random import Random

import msgspec

from diagnosis.autopilot.books import BY
from diagnosis.autopilot.bounds import DEFAULT_BOUNDS
from diagnosis.autopilot.pilot import Pilot
from diagnosis.autopilot.proposal import Values
from diagnosis.settings_search.answer import ClassForecast, Setting, SettingsAnswer, Trial
from service.composition.autopilot_worker import AutopilotWorker
from service.composition.replay_child import ReplayChild
from service.engine.limits_record import LimitError
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import LimitsSet
from telemetry.facts.limits import limits_at_start
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, RequestAccepted, RequestTokenized
from telemetry.pump.pump import Pump
from telemetry.requests.slo_policy import DEFAULT_POLICY
from tests.support.servers.server import eventually
from tests.support.worlds.facts import TRACE
from tests.support.worlds.piloted import SECOND, started


def forecast(good_share: float) -> dict[str, ClassForecast]:
    return {
        "chat": ClassForecast(
            requests=60, good_share=good_share, ttft_p95_ms=1.0, itl_p99_ms=1.0,
            output_tokens_per_s=1.0, late_first_tokens=0, slow_tokens=0,
        )
    }  # fmt: skip


def promising(before: float, after: float) -> SettingsAnswer:
    """16 sequences instead of 4 are said to be better."""
    setting = Setting(name="max_num_seqs", value=16, was=4, runtime=True)
    best = Trial(settings=(setting,), classes=forecast(after))
    return SettingsAnswer(
        window_s=30.0, present=Trial(settings=(), classes=forecast(before)),
        recorded=forecast(before), noise={"chat": 0.02}, best_runtime=best, best=best,
        capacity=None, impossible={}, tried=3, cpu_s=0.1,
    )  # fmt: skip


class Kept:
    """A fold that keeps decisions."""

    def __init__(self) -> None:
        self.decisions: list[AutopilotDecided] = []

    def on_facts(self, facts: list[Fact]) -> None:
        self.decisions += [fact for fact in facts if isinstance(fact, AutopilotDecided)]


class Bench:
    """A worker with a real pump and a child of its own; the engine confirms, or `refuses`."""

    def __init__(self, program: str, mode: str = "act", *, refuses: bool = False) -> None:
        self.clock, self.lane, self.kept = ManualClock(SECOND), Lane(), Kept()
        self.pump = Pump(self.clock)
        self.engine, self.refuses = started(), refuses
        self.limits = limits_at_start(self.engine)
        self.puts: list[tuple[Values, str]] = []
        self.pilot = Pilot(DEFAULT_POLICY, DEFAULT_BOUNDS, acts=mode == "act")
        self._draw, self._requests = Random(3), 0
        child = ReplayChild(lambda: [b""], (sys.executable, "-c", program))
        self.worker = AutopilotWorker(
            self.clock, self.pump, self.pilot, mode, DEFAULT_BOUNDS, lambda: "fault", self.put,
            child, ["--settings", "--json"],
        )  # fmt: skip
        self.pump.add_lane(self.lane)
        self.pump.add_lane(self.worker.lane)
        self.pump.add_fold("autopilot", self.worker)
        self.pump.add_fold("kept", self.kept)
        self.lane.append(self.engine)

    def put(self, values: Values, why: str) -> None:
        self.puts.append((values, why))
        if self.refuses:
            raise LimitError("max_num_seqs", "no")
        fields = {"max_seqs": values["max_num_seqs"]}
        self.limits = msgspec.structs.replace(self.limits, **fields)
        now_ns = self.clock.now_ns()
        self.lane.append(LimitsSet(now_ns, 1, self.limits, tuple(values), BY, why))

    def traffic(self, seconds: float, good_share: float) -> None:
        """Four requests a second, and a look after each half second."""
        for _ in range(int(2 * seconds)):
            self.clock.advance(SECOND // 2)
            for _ in range(2):
                self._requests += 1
                name, now_ns = f"r{self._requests}", self.clock.now_ns()
                self.lane.append(
                    RequestAccepted(
                        name, now_ns, TRACE, None, None, None, "/v1/completions", "chat", "a",
                        "chat",
                    )
                )  # fmt: skip
                self.lane.append(RequestTokenized(name, now_ns, 50))
                self.pump.run_once()
                self.pilot.books.ended(name, self._draw.random() < good_share)
            self.look()

    def look(self) -> None:
        self.worker.tick()
        self.pump.run_once()

    def until_searched(self) -> None:
        eventually(lambda: self.pilot_has_answer(), "an answer of the child", 30)
        self.look()

    def pilot_has_answer(self) -> bool:
        self.clock.advance(SECOND // 100)
        self.look()
        return self.worker.searches > 0 and self.pilot.state.value != "wait"

    @property
    def said(self) -> list[tuple[Decision, Reason]]:
        return [(one.decision, one.reason) for one in self.kept.decisions]


def program_of(answer: SettingsAnswer) -> str:
    return f"print({msgspec.json.encode(answer).decode()!r})"


def test_what_the_child_finds_is_set_measured_and_kept() -> None:
    bench = Bench(program_of(promising(0.3, 0.97)))
    bench.traffic(20, 0.3)
    bench.until_searched()
    bench.traffic(20, 0.97)

    assert bench.said == [
        (Decision.PROPOSED, Reason.GAIN),
        (Decision.APPLIED, Reason.GAIN),
        (Decision.KEPT, Reason.PROMISE_KEPT),
    ]
    assert [values for values, _ in bench.puts] == [{"max_num_seqs": 16}]
    view = bench.worker.view()
    assert (view.mode, view.state, view.searches) == ("act", "cool_down", 1)
    assert [one.decision for one in view.decisions] == ["proposed", "applied", "kept"]
    (counted,) = [
        samples for metric, samples in bench.worker.families() if "decisions" in metric.name
    ]
    assert {labels["decision"]: n for labels, n in counted}["kept"] == 1
    line = bench.worker.line()
    assert (line.decision, line.limits) == ("kept", {"max_num_seqs": 16})


def test_a_promise_that_is_not_kept_is_rolled_back() -> None:
    bench = Bench(program_of(promising(0.3, 0.97)))
    bench.traffic(20, 0.3)
    bench.until_searched()
    bench.traffic(60, 0.3)

    assert bench.said[-1] == (Decision.ROLLED_BACK, Reason.PROMISE_MISSED)
    assert [values for values, _ in bench.puts] == [{"max_num_seqs": 16}, {"max_num_seqs": 4}]
    assert bench.limits.max_seqs == 4
    assert bench.puts[1][1].startswith("back: ")


def test_advice_sets_nothing() -> None:
    bench = Bench(program_of(promising(0.3, 0.97)), mode="advise")
    bench.traffic(20, 0.3)
    bench.until_searched()
    bench.traffic(20, 0.3)

    assert bench.said[0] == (Decision.PROPOSED, Reason.GAIN)
    assert not bench.puts
    assert bench.worker.view().state in ("advise", "wait")


def test_a_limit_that_the_engine_refuses_is_not_asked_for_again() -> None:
    bench = Bench(program_of(promising(0.3, 0.97)), refuses=True)
    bench.traffic(20, 0.3)
    bench.until_searched()
    bench.traffic(5, 0.3)

    assert (Decision.ROLLED_BACK, Reason.NOT_CONFIRMED) in bench.said
    assert (Decision.APPLIED, Reason.GAIN) not in bench.said
    assert bench.pilot.memory.tried == [{"max_num_seqs": 16}]


def test_a_way_back_that_the_owner_refuses_is_asked_for_once() -> None:
    bench = Bench(program_of(promising(0.3, 0.97)))
    bench.traffic(20, 0.3)
    bench.until_searched()
    bench.traffic(2, 0.3)
    assert bench.limits.max_seqs == 16
    bench.refuses = True
    bench.traffic(90, 0.3)

    assert (Decision.STOPPED, Reason.NOT_CONFIRMED) in bench.said
    assert [values for values, _ in bench.puts] == [{"max_num_seqs": 16}, {"max_num_seqs": 4}]
    assert "max_num_seqs" in bench.worker.view().stopped


def test_a_search_that_fails_is_counted_and_told() -> None:
    bench = Bench("import sys; sys.exit('no such thing')")
    bench.traffic(20, 0.3)
    bench.until_searched()

    failure = bench.worker.view().failure
    assert failure is not None
    assert failure.reason == "replay"
    assert "no such thing" in failure.error
    assert not bench.said
