"""Requests of a twin, an open loop, and the settings of its server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import cos, pi
from random import Random

from lab.simulation.sim_adapters import SimAdapter
from lab.twins.physics import MS, SECOND, Physics
from service.engine.admission import Limits
from telemetry.requests.slo_policy import SloClass, SloPolicy

_EVEN_NS = 2 * SECOND


def default_limits() -> Limits:
    """A small server on a CPU."""
    return Limits(
        block_tokens=16,
        blocks_total=768,
        max_model_tokens=1024,
        max_seqs=16,
        budget_tokens=256,
        chunked_prefill=True,
        queue_limit_requests=256,
        queue_limit_tokens=100_000,
        cache_identity="virtual",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A grammar of a request: what it costs to compile (nothing when it is cached), and its mask
    for each token; and whether the answer will obey it."""

    compile_ns: int = 4 * MS
    cached: bool = True
    mask_ns: int = 150_000
    valid: bool = True


def policy_of_world(ttft_ms: int, itl_ms: int, name: str = "chat", **more: int) -> SloPolicy:
    """One class with these targets; `more` are other classes with the same gap and their TTFT."""
    targets = {name: ttft_ms, **more}
    return SloPolicy(
        {
            one: SloClass(name=one, ttft_ns=ms * MS, itl_ns=itl_ms * MS)
            for one, ms in targets.items()
        },
        name,
    )


WORLD_POLICY = policy_of_world(2_500, 450)
"""What every healthy twin keeps: a chunk of a simulated engine takes 120 ms, and a small cache or a
burst makes requests wait for a second now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMix:
    """Requests of one SLO class: their share, and the lengths of their prompts."""

    share: float
    prompt: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A client that reads a token every `interval_ns` and no faster."""

    interval_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surges:
    """A Poisson process of two rates (MMPP): `high` times the mean for `high_s` seconds at a time,
    and less for `low_s`, both of exponential length."""

    high: float = 1.8
    high_s: float = 3.0
    low_s: float = 9.0

    def times(self, draw: Random, begin_ns: int, end_ns: int, rate: float) -> Iterator[int]:
        """Arrivals whose mean rate is `rate`."""
        low = (self.high_s + self.low_s - self.high * self.high_s) / self.low_s
        at_ns, is_high = begin_ns, False
        while at_ns < end_ns:
            mean_s = self.high_s if is_high else self.low_s
            until_ns = min(end_ns, at_ns + int(draw.expovariate(1 / mean_s) * SECOND))
            yield from _poisson(draw, at_ns, until_ns, rate * (self.high if is_high else low))
            at_ns, is_high = until_ns, not is_high


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """A rate that goes up and down by `part` of its mean, once in `period_s`."""

    part: float = 0.4
    period_s: float = 300.0

    def times(self, draw: Random, begin_ns: int, end_ns: int, rate: float) -> Iterator[int]:
        """Arrivals whose mean rate is `rate`: those of the highest rate, of which some are kept."""
        for at_ns in _poisson(draw, begin_ns, end_ns, rate * (1 + self.part)):
            turn = 2 * pi * (at_ns - begin_ns) / (self.period_s * SECOND)
            if draw.random() * (1 + self.part) < 1 - self.part * cos(turn):
                yield at_ns


@dataclass(slots=True, kw_only=True)
class RequestSpec:
    """One request of the traffic.

    Its prompt is a system prompt of `system_tokens` tokens, shared with others of the same
    tenant and `system`, and `own_tokens` that are its own. It gives `outputs` tokens for
    each choice, of at most `max_tokens`. The client disconnects `disconnect_ns` after it arrived;
    `leaked_sequences` is then the number of choices, from the last on, that are not cancelled.
    `body_tokens` is the length of a text that is encoded and then refused as too long.
    """

    number: int
    at_ns: int
    tenant: str
    system: int
    system_tokens: int
    own_tokens: int
    outputs: int
    max_tokens: int
    stream: bool = True
    choices: int = 1
    temperature: float = 0.7
    top_p: float = 1.0
    salt: str = ""
    sample_ns: int = 0
    constraint: Constraint | None = None
    reader: Reader | None = None
    disconnect_ns: int | None = None
    leaked_sequences: int = 0
    body_tokens: int | None = None
    slo_class: str = ""
    adapter: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.system_tokens + self.own_tokens

    def prompt(self) -> list[int]:
        """Token ids that are equal where prompts share a prefix."""
        return [-1 - self.system] * self.system_tokens + [self.number] * self.own_tokens


@dataclass(slots=True, kw_only=True)
class Setting:
    """A server and its baseline traffic. Ranges are uniform and inclusive; shares are of all
    requests."""

    load: float  # demand over what the engine can do
    limits: Limits = field(default_factory=default_limits)
    physics: Physics = field(default_factory=Physics)
    prompt: tuple[int, int] = (16, 112)  # tokens after the system prompt
    outputs: tuple[int, int] = (8, 40)  # tokens
    tenants: dict[str, float] = field(default_factory=lambda: {"amber": 1.0, "birch": 1.0})
    systems: int = 3  # different system prompts
    system_tokens: int = 48
    system_share: float = 0.4  # of the requests have one
    constrained: float = 0.06  # share with a grammar
    disconnects: float = 0.02  # share whose client leaves early
    disconnect_outputs: tuple[int, int] | None = None  # tokens that these want
    two_choices: float = 0.02  # share with n = 2
    cluster_chance: float = 0.0  # probability that others come with a request
    steady: bool = False  # the same demand in any two seconds
    burst_requests: int | None = None  # so many within a second, instead of one by one
    surges: Surges | None = None  # a higher rate that comes and goes (MMPP)
    swing: Swing | None = None  # a slow change of the rate, as over a day
    stream_buffer_tokens: int = 256
    one_tokenizer: bool = False  # prompts are encoded by one thread beside the event loop
    sends_step_cost: bool = False  # the gateway sends the fitted cost of a step to the engine
    policy: SloPolicy = WORLD_POLICY
    classes: dict[str, ClassMix] = field(default_factory=dict)  # empty: all are of the default
    adapters: tuple[SimAdapter, ...] = ()  # numbered from 1
    adapters_used: int = 0  # requests name one of the first so many, or none
    gpus: int = 0
    unmeasured: frozenset[str] = frozenset()  # fields of `GpuSampled` that the driver lacks

    @classmethod
    def drawn(cls, draw: Random) -> Setting:
        tenants = {"amber": 1.0, "birch": draw.uniform(0.6, 1.0)}
        if draw.random() < 0.5:
            tenants["cedar"] = draw.uniform(0.4, 1.0)
        return cls(load=draw.uniform(0.4, 0.7), tenants=tenants)

    @property
    def capacity_per_s(self) -> float:
        """Requests a second that keep the engine busy all the time, with a full batch and a warm
        prefix cache."""
        physics = self.physics
        own, outputs = _mean(self.prompt), _mean(self.outputs)
        context = own + self.system_share * self.system_tokens + outputs / 2
        decode_ns = physics.decode_row_ns + physics.sample_row_ns
        step_ns = physics.iteration_ns / self.limits.max_seqs + decode_ns
        step_ns += physics.context_token_ns * context
        return SECOND / (outputs * step_ns + own * physics.prompt_token_ns)

    @property
    def rate_per_s(self) -> float:
        return self.load * self.capacity_per_s

    def specs(
        self, draw: Random, begin_ns: int, end_ns: int, rate: float | None = None
    ) -> list[RequestSpec]:
        """Requests that arrive in [begin, end), `rate` a second, or `rate_per_s`."""
        rate = self.rate_per_s if rate is None else rate
        changes = self.surges or self.swing
        if self.burst_requests is not None:
            times = _bursts(draw, begin_ns, end_ns, rate, self.burst_requests)
        elif changes is not None:
            times = changes.times(draw, begin_ns, end_ns, rate)
        else:
            singles = (_even if self.steady else _poisson)(
                draw, begin_ns, end_ns, rate / (1 + 2 * self.cluster_chance)
            )
            times = _clustered(draw, singles, self.cluster_chance)
        return [self.spec(draw, number, at_ns) for number, at_ns in enumerate(times)]

    def spec(self, draw: Random, number: int, at_ns: int) -> RequestSpec:
        outputs = draw.randint(*self.outputs)
        shares = draw.random() < self.system_share
        disconnect_ns = None
        if draw.random() < self.disconnects:
            disconnect_ns = int(draw.uniform(0.15, 0.7) * SECOND)
            outputs = draw.randint(*(self.disconnect_outputs or self.outputs))
        constraint = None
        if disconnect_ns is None and draw.random() < self.constrained:
            constraint = Constraint(cached=draw.random() < 0.9)
        ends = constraint is not None or draw.random() < 0.6
        prompt, slo_class = self.prompt, ""
        if self.classes:
            shares_by = {name: mix.share for name, mix in self.classes.items()}
            slo_class = draw.choices(list(shares_by), list(shares_by.values()))[0]
            prompt = self.classes[slo_class].prompt
        adapter = draw.randint(0, self.adapters_used) if self.adapters_used else 0
        return RequestSpec(
            number=number,
            at_ns=at_ns,
            tenant=draw.choices(list(self.tenants), list(self.tenants.values()))[0],
            system=draw.randrange(self.systems),
            system_tokens=self.system_tokens if shares else 0,
            own_tokens=draw.randint(*prompt),
            outputs=outputs,
            max_tokens=max(outputs + 8, 64) if ends else outputs,
            stream=disconnect_ns is not None or draw.random() < 0.85,
            choices=2 if draw.random() < self.two_choices else 1,
            constraint=constraint,
            disconnect_ns=disconnect_ns,
            slo_class=slo_class,
            adapter=adapter,
        )


def _poisson(draw: Random, begin_ns: int, end_ns: int, rate: float) -> Iterator[int]:
    at_ns = begin_ns
    while (at_ns := at_ns + int(draw.expovariate(rate) * SECOND)) < end_ns:
        yield at_ns


def _even(draw: Random, begin_ns: int, end_ns: int, rate: float) -> Iterator[int]:
    """The same number in every two seconds, at random times within them."""
    due = 0.0
    for since_ns in range(begin_ns, end_ns, _EVEN_NS):
        due += rate * _EVEN_NS / SECOND
        times = sorted(since_ns + draw.randrange(_EVEN_NS) for _ in range(int(due)))
        yield from (at_ns for at_ns in times if at_ns < end_ns)
        due -= int(due)


def _bursts(draw: Random, begin_ns: int, end_ns: int, rate: float, size: int) -> Iterator[int]:
    """`size` requests within a second, then a pause, so that the mean rate is `rate`."""
    at_ns = begin_ns + int(draw.random() * size / rate * SECOND)
    while at_ns < end_ns:
        yield from sorted(at_ns + draw.randrange(SECOND) for _ in range(size))
        at_ns += int(draw.uniform(0.8, 1.2) * size / rate * SECOND)


def _clustered(draw: Random, times: Iterable[int], chance: float) -> Iterator[int]:
    """Each arrival is followed, with probability `chance`, by one to three more within 20 ms."""
    for at_ns in times:
        yield at_ns
        if chance and draw.random() < chance:
            for _ in range(draw.randint(1, 3)):
                yield at_ns + draw.randrange(20 * MS)


def _mean(bounds: tuple[int, int]) -> float:
    return (bounds[0] + bounds[1]) / 2
