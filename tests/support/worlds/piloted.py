"""A server in a few numbers, with the autopilot in the loop: how large a share of requests is good
follows from the limits in force and the load, and each request is drawn.

Facts, answers and changes come as they would from a real server; time is virtual. `Invariants`
checks what must always hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from diagnosis.autopilot.books import BY
from diagnosis.autopilot.bounds import DEFAULT_BOUNDS, Bounds
from diagnosis.autopilot.desk import Ask, Put, State
from diagnosis.autopilot.pilot import Pilot
from diagnosis.autopilot.proposal import Values
from diagnosis.settings_search.answer import ClassForecast, Setting, SettingsAnswer, Trial
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.engine_records import EngineStarted, LimitsSet, SequenceAdmitted
from telemetry.facts.engine_start import RuntimeLimits
from telemetry.facts.limits import AUTO, LimitValue, limits_at_start, named
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.records import (
    EngineDied,
    Fact,
    RequestAccepted,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.requests.slo_policy import DEFAULT_POLICY
from tests.support.worlds.facts import TRACE

SECOND = 1_000_000_000
TICK_NS = SECOND // 2
NUMBERED = {
    "max_num_seqs": "max_seqs",
    "max_batched_tokens": "budget_tokens",
    "max_auto_tokens": "budget_tokens",
}

Shares = Mapping[str, float]
Model = Callable[[Mapping[str, LimitValue], float], Shares]
"""The share of good requests of each class, from the limits in force and the requests a second."""
OVER = (Decision.KEPT, Decision.ROLLED_BACK, Decision.STOPPED)


def started(max_seqs: int = 4, budget_tokens: int = 2048) -> EngineStarted:
    return EngineStarted(
        at_ns=1, pid=1, model="m", backend="sim", dtype="bf16", blocks_total=512, block_tokens=16,
        max_model_tokens=2048, max_seqs=max_seqs, budget_tokens=budget_tokens,
        chunked_prefill=True, pipeline_depth=1, queue_limit_requests=512,
        queue_limit_tokens=1 << 20, budget_ceiling_tokens=8192,
    )  # fmt: skip


@dataclass(slots=True)
class World:
    """`rate` gives the requests a second at a time in s, `verdict` what the diagnosis says there.
    `truth` is how it is, `forecast` how the search sees it; `search_s` is how long a search takes,
    None: it never answers. `candidates` are the changes that it tries. A request `takes_s`, by
    whether it is good; what takes longer than its TTFT target waits for no batch."""

    truth: Model
    candidates: Sequence[Values]
    forecast: Model | None = None
    rate: Callable[[float], float] = lambda at_s: 4.0
    verdict: Callable[[float, Shares], str] = lambda at_s, shares: (
        "fault" if min(shares.values(), default=1.0) < 0.95 else "healthy"
    )
    seed: int = 1
    takes_s: Callable[[bool], float] = lambda is_good: 0.1
    acts: bool = True
    bounds: Bounds = field(default_factory=lambda: DEFAULT_BOUNDS)
    search_s: float | None = 6.0
    confirms: bool = True
    events: dict[int, Callable[[World], None]] = field(default_factory=dict)
    engine: EngineStarted = field(default_factory=started)
    now_ns: int = SECOND
    puts: list[Put] = field(default_factory=list)
    asks: list[int] = field(default_factory=list)
    searches: list[tuple[int, int]] = field(default_factory=list)
    """Those that run: when each will answer, and its number."""
    decisions: list[AutopilotDecided] = field(default_factory=list)
    pilot: Pilot = field(init=False)
    limits: RuntimeLimits = field(init=False)
    checks: Invariants = field(init=False)
    _draw: Random = field(init=False)
    _requests: int = 0
    _ends: list[tuple[int, str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pilot = Pilot(DEFAULT_POLICY, self.bounds, acts=self.acts)
        self.limits = limits_at_start(self.engine)
        self.checks = Invariants(self)
        self._draw = Random(self.seed)
        self.pilot.on_fact(self.engine)

    @property
    def at_s(self) -> float:
        return self.now_ns / SECOND

    @property
    def in_force(self) -> dict[str, LimitValue]:
        return named(self.limits)

    def told(self, *decisions: Decision) -> list[AutopilotDecided]:
        return [one for one in self.decisions if not decisions or one.decision in decisions]

    def run(self, seconds: float) -> World:
        end_ns = self.now_ns + int(seconds * SECOND)
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            event = self.events.pop(int(self.at_s), None)
            if event is not None:
                event(self)
            shares = self.truth(self.in_force, self.rate(self.at_s))
            self._traffic(shares)
            self._answer()
            for one in self.pilot.tick(self.now_ns, self.verdict(self.at_s, shares)):
                self._carry_out(one)
            self.checks.after_tick()
        return self

    def set_limits(self, values: Values, by: str = "ann") -> None:
        """Somebody changes limits."""
        fields = {NUMBERED.get(name, name): value for name, value in values.items()}
        if "max_batched_tokens" in values:
            fields["auto_budget"] = values["max_batched_tokens"] == AUTO
            if fields["auto_budget"]:
                tokens = values.get("max_auto_tokens", self.limits.budget_tokens)
                fields["budget_tokens"] = tokens
        self.limits = replace(self.limits, **fields)
        fact = LimitsSet(self.now_ns, 1, self.limits, tuple(sorted(values)), by, "")
        self.pilot.on_fact(fact)

    def restart(self, *, with_limits: bool = True) -> None:
        """The engine dies and is replaced; the owner puts what was in force again."""
        self.pilot.on_fact(EngineDied(self.now_ns, -9, "", 1))
        before = self.limits
        self.pilot.on_fact(replace(self.engine, at_ns=self.now_ns))
        self.limits = limits_at_start(self.engine)
        if with_limits and before != self.limits:
            self.limits = before
            self.pilot.on_fact(LimitsSet(self.now_ns, 1, before, (), "restart", ""))

    def _traffic(self, shares: Shares) -> None:
        for request_id, is_good in [(r, g) for at_ns, r, g in self._ends if at_ns <= self.now_ns]:
            self.pilot.books.ended(request_id, is_good)
        self._ends = [one for one in self._ends if one[0] > self.now_ns]
        expected = self.rate(self.at_s) * TICK_NS / SECOND
        count = int(expected) + (self._draw.random() < expected - int(expected))
        for _ in range(count):
            self._requests += 1
            name = f"r{self._requests}"
            slo_class = self._draw.choice(sorted(shares))
            for fact in arrival(name, self._requests, slo_class, self.now_ns):
                self.pilot.on_fact(fact)
            is_good = self._draw.random() < shares[slo_class]
            takes_ns = int(self.takes_s(is_good) * SECOND)
            if takes_ns > DEFAULT_POLICY.of(slo_class).ttft_ns:
                self.pilot.on_fact(admitted(self._requests, self.now_ns))
            self._ends.append((self.now_ns + takes_ns, name, is_good))

    def _answer(self) -> None:
        over = [one for one in self.searches if one[0] <= self.now_ns]
        self.searches = [one for one in self.searches if one[0] > self.now_ns]
        for _, number in over:
            self.pilot.on_answer(number, self.answer(), 2.0, self.now_ns)

    def answer(self) -> SettingsAnswer:
        """The best of the candidates, as the forecast sees it."""
        see, rate = self.forecast or self.truth, self.rate(self.at_s)
        present = self._trial((), see(self.in_force, rate))
        best: Trial | None = None
        for values in self.candidates:
            settings = tuple(
                Setting(name=name, value=value, was=self.in_force[name], runtime=True)
                for name, value in values.items()
                if self.in_force[name] != value
            )
            trial = self._trial(settings, see({**self.in_force, **values}, rate))
            if settings and _total(trial) > _total(best or present) + 0.02:
                best = trial
        truth = self._trial((), self.truth(self.in_force, rate))
        return SettingsAnswer(
            window_s=30.0, present=present, recorded=truth.classes,
            noise=dict.fromkeys(present.classes, 0.02), best_runtime=best, best=best,
            capacity=None, impossible={}, tried=len(self.candidates), cpu_s=2.0,
        )  # fmt: skip

    def _trial(self, settings: tuple[Setting, ...], shares: Shares) -> Trial:
        classes = {
            name: ClassForecast(
                requests=60, good_share=share, ttft_p95_ms=1.0, itl_p99_ms=1.0,
                output_tokens_per_s=1.0, late_first_tokens=0, slow_tokens=0,
            )
            for name, share in shares.items()
        }  # fmt: skip
        return Trial(settings=settings, classes=classes)

    def _carry_out(self, one: Ask | Put | AutopilotDecided) -> None:
        match one:
            case Ask():
                self.checks.asks()
                self.asks.append(self.now_ns)
                if self.search_s is not None:
                    end_ns = self.now_ns + int(self.search_s * SECOND)
                    self.searches.append((end_ns, one.number))
            case Put():
                self.puts.append(one)
                if self.confirms:
                    values = {k: v for k, v in one.values.items() if self.in_force[k] != v}
                    if values:
                        self.set_limits(values, by=BY)
            case AutopilotDecided():
                self.decisions.append(one)
                self.checks.decided(one)


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Invariants:
    """AP-1  One change at a time: a change is applied only when the one before is decided.
    AP-2  Every value that is set is within the bounds, or was in force before.
    AP-3  Each change that is applied is kept, rolled back, or taken over by an operator.
    AP-4  Nothing is set unless it was proposed, and never in `advise`.
    AP-5  Nothing is set, and nothing searched, while nothing is wrong or the verdict is open.
    AP-6  A limit that an operator has set is not set again.
    AP-7  After a rollback the values from before are in force.
    AP-8  No search is asked for while one runs.
    """

    world: World
    open: AutopilotDecided | None = None
    proposed: set[int] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    seen: dict[str, list[LimitValue]] = field(default_factory=dict)
    _puts: int = 0

    def decided(self, fact: AutopilotDecided) -> None:
        match fact.decision:
            case Decision.PROPOSED:
                self._require(self.open is None, "AP-1", fact)
                self.proposed.add(fact.number)
            case Decision.APPLIED:
                self._require(self.open is None, "AP-1", fact)
                self._require(fact.number in self.proposed and self.world.acts, "AP-4", fact)
                self.open = fact
            case Decision.KEPT | Decision.ROLLED_BACK:
                if fact.decision is Decision.ROLLED_BACK:
                    back = {k: v for k, v in fact.was.items() if k not in self.stopped}
                    for name, value in back.items():
                        self._require(self.world.in_force[name] == value, "AP-7", fact)
                self.open = None
            case Decision.STOPPED:
                self.stopped |= fact.limits.keys()
                if self.open is not None and fact.number == self.open.number:
                    self.open = None
            case _:
                pass

    def asks(self) -> None:
        self._require(not self.world.searches, "AP-8", self.world.searches)

    def after_tick(self) -> None:
        world = self.world
        for name, value in world.in_force.items():
            values = self.seen.setdefault(name, [])
            if value not in values:
                values.append(value)
        for put in world.puts[self._puts :]:
            self._require(world.acts, "AP-4", put)
            for name, value in put.values.items():
                within = name in world.bounds and world.bounds[name].allows(value)
                self._require(within or value in self.seen.get(name, []), "AP-2", put)
                self._require(name not in self.stopped, "AP-6", put)
        self._puts = len(world.puts)
        is_trying = world.pilot.attempt is not None
        self._require(self.open is None or is_trying, "AP-3", self.open)

    def _require(self, holds: bool, name: str, what: object) -> None:
        if not holds:
            raise Broken(f"{name} at {self.world.at_s:.1f} s: {what}; {self.world.decisions}")


def at_rest(world: World) -> bool:
    return world.pilot.state in (State.WATCH, State.ADVISE, State.COOL_DOWN, State.WAIT)


def _total(trial: Trial) -> float:
    return sum(one.good_share for one in trial.classes.values())


def arrival(name: str, number: int, slo_class: str, at_ns: int) -> list[Fact]:
    return [
        RequestAccepted(
            name, at_ns, TRACE, None, None, None, "/v1/completions", "text_completion", "a",
            slo_class,
        ),
        RequestTokenized(name, at_ns, 50),
        SequenceSubmitted(name, at_ns, number, 0),
    ]  # fmt: skip


def admitted(seq_id: int, at_ns: int) -> SequenceAdmitted:
    return SequenceAdmitted(seq_id, at_ns, 1, 50, 0, 0, 0)
