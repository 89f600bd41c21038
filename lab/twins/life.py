"""A server's life before it happens: the traffic and whatever goes wrong, for faults to edit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from lab.twins.losses import Thief
from lab.twins.physics import SECOND, Physics, Slowdown
from lab.twins.traffic import Ask, Setting
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


WHOLE = Span.of_seconds(0, _STOP_S)
REFERENCE = Span.of_seconds(_WARM_S, _ONSET_S - 1)


def fault_span(draw: Random) -> Span:
    """When the fault is there: onset and offset vary by a second."""
    return Span.of_seconds(_ONSET_S + draw.uniform(-1, 1), _OFFSET_S + draw.uniform(-1, 1))


@dataclass(frozen=True, slots=True)
class Death:
    """An engine process ends, or one that was to replace it does."""

    at_ns: int
    exit_code: int
    detail: str
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """No engine serves in [begin, end); None: for good. The first of `deaths` is that of the one
    that served, if one did."""

    begin_ns: int
    end_ns: int | None
    deaths: tuple[Death, ...]


@dataclass(frozen=True, slots=True)
class Hang:
    """The engine's process lives in [begin, end) and does nothing. At `seen_ns` the gateway has
    found that out: it refuses from then on. It `recovers` at the end, or is ended then."""

    begin_ns: int
    seen_ns: int
    end_ns: int
    kind: HangKind
    recovers: bool

    def refuses(self, at_ns: int) -> bool:
        return self.seen_ns <= at_ns < self.end_ns


@dataclass(slots=True, kw_only=True)
class Life:
    """Everything that happens to one server. `culprits` and `victims` are requests by number, or
    tenants; no fact says so. `fails` says which plans fail and of what, `loses` which facts nobody
    keeps. `resident` is the engine's memory in bytes at a time. `struck` is when the fault was
    there, if not for all of the span that it was given.
    """

    setting: Setting
    seed: str
    span: Span = WHOLE
    asks: list[Ask]
    commands: list[tuple[int, Command]] = field(default_factory=list)
    slowdowns: list[Slowdown] = field(default_factory=list)
    thieves: list[Thief] = field(default_factory=list)
    outage: Outage | None = None
    hang: Hang | None = None
    fails: Callable[[Plan, int], StepFailure | None] | None = None
    loses: Callable[[Fact], bool] | None = None
    resident: Callable[[int], int] = field(default=lambda at_ns: 900 << 20)
    struck: Span | None = None
    culprits: set[int | str] = field(default_factory=set)
    victims: set[int | str] = field(default_factory=set)

    @classmethod
    def usual(cls, setting: Setting, seed: str, span: Span = WHOLE) -> Life:
        """Nothing but the usual traffic."""
        asks = setting.asks(Random(f"{seed}/asks"), span.begin_ns, span.end_ns)
        life = cls(setting=setting, seed=seed, span=span, asks=asks)
        if setting.tells_cost:
            life.commands += _told_costs(setting.physics, span)
        return life

    def coming(self, span: Span) -> list[Ask]:
        return [ask for ask in self.asks if span.has(ask.at_ns)]

    def add(self, asks: list[Ask]) -> None:
        """More requests, which get numbers of their own."""
        first = max((ask.number for ask in self.asks), default=-1) + 1
        for number, ask in enumerate(asks, first):
            ask.number = number
        self.asks += asks

    def settle(self) -> None:
        """Number requests in the order in which they come: no number tells where one is from."""
        self.asks.sort(key=lambda ask: ask.at_ns)
        numbers: dict[int | str, int] = {ask.number: number for number, ask in enumerate(self.asks)}
        for number, ask in enumerate(self.asks):
            ask.number = number
        self.culprits = {numbers.get(one, one) for one in self.culprits}
        self.victims = {numbers.get(one, one) for one in self.victims}


def _told_costs(physics: Physics, span: Span) -> list[tuple[int, Command]]:
    """As the gateway has fitted it, again every few seconds."""
    cost = SetStepCost(
        base_ns=physics.turn_ns,
        prefill_token_ns=physics.prompt_token_ns,
        decode_row_ns=physics.decode_row_ns + physics.sample_row_ns,
        context_token_ns=physics.context_token_ns,
    )
    return [(at_ns, cost) for at_ns in range(span.begin_ns + SECOND, span.end_ns, 5 * SECOND)]
