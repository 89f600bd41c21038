"""A run before it is simulated: traffic and what goes wrong; faults edit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from lab.twins.gpus import Gpus
from lab.twins.losses import CpuContention
from lab.twins.physics import SECOND, Physics, Slowdown
from lab.twins.traffic import RequestSpec, Setting
from service.engine.inbox import Command, SetStepCost
from service.engine.plan import Plan
from telemetry.facts.reasons import HangKind, StepFailure
from telemetry.facts.records import Fact

START_NS = 1_000 * SECOND
_WARM_S, _ONSET_S, _OFFSET_S, _STOP_S = 8, 28, 48, 58


@dataclass(frozen=True, slots=True)
class Span:
    """[begin, end) in ns of the twin's clock."""

    begin_ns: int
    end_ns: int

    @classmethod
    def of_seconds(cls, begin_s: float, end_s: float) -> Span:
        return cls(START_NS + int(begin_s * SECOND), START_NS + int(end_s * SECOND))

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns

    def has(self, at_ns: int) -> bool:
        return self.begin_ns <= at_ns < self.end_ns


WHOLE_RUN = Span.of_seconds(0, _STOP_S)
REFERENCE = Span.of_seconds(_WARM_S, _ONSET_S - 1)


def fault_span(draw: Random) -> Span:
    """When the fault is there: onset and offset vary by a second."""
    return Span.of_seconds(_ONSET_S + draw.uniform(-1, 1), _OFFSET_S + draw.uniform(-1, 1))


@dataclass(frozen=True, slots=True)
class Death:
    """The end of an engine process, or of one that was to replace it."""

    at_ns: int
    exit_code: int
    detail: str
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """No engine serves in [begin, end); end None: to the end of the run. The first of `deaths` is
    that of the engine that served, if one did."""

    begin_ns: int
    end_ns: int | None
    deaths: tuple[Death, ...]


@dataclass(frozen=True, slots=True)
class Hang:
    """The engine process does nothing in [begin, end). At `detected_ns` the gateway has found that
    out and refuses requests from then on. The engine `recovers` at the end, or is ended then."""

    begin_ns: int
    detected_ns: int
    end_ns: int
    kind: HangKind
    recovers: bool

    def refuses(self, at_ns: int) -> bool:
        return self.detected_ns <= at_ns < self.end_ns


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """Everything that happens to one server. `culprits` and `victims` are requests by number, or
    tenants; no fact contains them. `fails` gives the failure of a plan launched at a time,
    `drops_fact` the facts that are lost, `resident_bytes` the engine's memory at a time.
    `gpus` are None on a machine without one. `injected` is when the fault was there, None: for the
    whole span that it was given.
    """

    setting: Setting
    seed: str
    span: Span = WHOLE_RUN
    specs: list[RequestSpec]
    commands: list[tuple[int, Command]] = field(default_factory=list)
    slowdowns: list[Slowdown] = field(default_factory=list)
    cpu_contention: list[CpuContention] = field(default_factory=list)
    outage: Outage | None = None
    hang: Hang | None = None
    fails: Callable[[Plan, int], StepFailure | None] | None = None
    drops_fact: Callable[[Fact], bool] | None = None
    resident_bytes: Callable[[int], int] = field(default=lambda at_ns: 900 << 20)
    gpus: Gpus | None = None
    injected: Span | None = None
    culprits: set[int | str] = field(default_factory=set)
    victims: set[int | str] = field(default_factory=set)

    @classmethod
    def baseline(cls, setting: Setting, seed: str, span: Span = WHOLE_RUN) -> SimulatedRun:
        """A run with baseline traffic only."""
        specs = setting.specs(Random(f"{seed}/asks"), span.begin_ns, span.end_ns)
        run = cls(setting=setting, seed=seed, span=span, specs=specs)
        if setting.gpus:
            run.gpus = Gpus(setting.gpus, [], [], setting.unmeasured)
        if setting.sends_step_cost:
            run.commands += _step_cost_commands(setting.physics, span)
        return run

    def arriving_in(self, span: Span) -> list[RequestSpec]:
        return [spec for spec in self.specs if span.has(spec.at_ns)]

    def add(self, specs: list[RequestSpec]) -> None:
        """Add requests; they get new numbers."""
        first = max((spec.number for spec in self.specs), default=-1) + 1
        for number, spec in enumerate(specs, first):
            spec.number = number
        self.specs += specs

    def renumber(self) -> None:
        """Number requests in the order of arrival, so that no number shows what a fault added."""
        self.specs.sort(key=lambda spec: spec.at_ns)
        numbers: dict[int | str, int] = {
            spec.number: number for number, spec in enumerate(self.specs)
        }
        for number, spec in enumerate(self.specs):
            spec.number = number
        self.culprits = {numbers.get(one, one) for one in self.culprits}
        self.victims = {numbers.get(one, one) for one in self.victims}


def _step_cost_commands(physics: Physics, span: Span) -> list[tuple[int, Command]]:
    """The fitted cost of a step, sent by the gateway every five seconds."""
    cost = SetStepCost(
        base_ns=physics.iteration_ns,
        prefill_token_ns=physics.prompt_token_ns,
        decode_row_ns=physics.decode_row_ns + physics.sample_row_ns,
        context_token_ns=physics.context_token_ns,
    )
    return [(at_ns, cost) for at_ns in range(span.begin_ns + SECOND, span.end_ns, 5 * SECOND)]
