"""Requests and their times: a function of seed, phases and capacity, fixed before anything runs.

Arrivals are an open loop: independent times at a rate relative to the measured capacity. Each kind
of traffic has a random generator of its own, so that the requests that a mechanism adds do not
change the baseline: an episode and its healthy twin serve the same baseline requests.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from lab.drills.spec import Capacity, Phase, Phases

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TENANTS = ("red", "green", "blue")
PROMPT_IDS = (10, 250)  # every vocabulary has them
DECODE_SHARE = 0.5  # of a baseline request's cost, roughly; the rest is its prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How a client reads its stream; by default as fast as it comes.

    It reads no faster than `tokens_per_s`; after `stop_after_tokens` it reads nothing for `stop_s`;
    after `leave_after_tokens` it closes the connection; after each `spurt_tokens` it reads nothing
    for `pause_s`.
    """

    tokens_per_s: float | None = None
    stop_after_tokens: int | None = None
    stop_s: float = 0.0
    leave_after_tokens: int | None = None
    spurt_tokens: int | None = None
    pause_s: float = 0.0

    @property
    def has_small_buffer(self) -> bool:
        """Whether its receive buffer is small, so that the server notices slow reading."""
        paced = (self.tokens_per_s, self.stop_after_tokens, self.spurt_tokens)
        return any(pace is not None for pace in paced)


STEADY = Reader()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request that is going to be sent, `at_s` after the start of the traffic; without an
    `slo_class` it is of the default one."""

    at_s: float
    body: bytes
    tenant: str
    path: str = COMPLETIONS
    reader: Reader = STEADY
    is_culprit: bool = False
    slo_class: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A mix of requests: lengths in tokens, uniform between inclusive bounds.

    All prompts begin with the same `shared_tokens`; `fields` go into every body. Measured
    capacities are kept by the name.
    """

    name: str
    prompt: tuple[int, int] = (16, 48)
    output: tuple[int, int] = (16, 48)
    shared_tokens: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    def body(self, draw: np.random.Generator) -> bytes:
        """The body of the next request."""
        own = token_ids(draw, int(draw.integers(self.prompt[0], self.prompt[1] + 1)))
        output = int(draw.integers(self.output[0], self.output[1] + 1))
        shared = token_ids(np.random.default_rng(zlib.crc32(b"shared")), self.shared_tokens)
        return completion_body([*shared, *own], output, **self.fields)


CHAT_MIX = Mix(name="chat")


def token_ids(draw: np.random.Generator, count: int) -> list[int]:
    found: list[int] = draw.integers(*PROMPT_IDS, count).tolist()
    return found


def completion_body(prompt: list[int] | str, max_tokens: int, **more: Any) -> bytes:
    """A greedy stream of exactly `max_tokens` tokens, unless `more` says otherwise."""
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    return msgspec.json.encode({key: value for key, value in body.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the traffic of an episode is computed from. `load` is the baseline utilisation."""

    seed: int
    phases: Phases
    capacity: Capacity
    intensity: float
    load: float
    mix: Mix

    @property
    def rate_per_s(self) -> float:
        """Baseline requests a second."""
        return self.load * self.capacity.requests_per_s

    def rng(self, kind: str) -> np.random.Generator:
        """A generator that is independent of those of other kinds with the same seed."""
        return np.random.default_rng([self.seed, zlib.crc32(kind.encode())])

    def arrival_times(
        self,
        kind: str,
        rate_per_s: float,
        begin_s: float,
        end_s: float,
        burst: int = 1,
        *,
        regular: bool = False,
    ) -> list[float]:
        """Times of a Poisson process of bursts, or of bursts at regular intervals, in order."""
        draw, found, at_s = self.rng(f"moments of {kind}"), list[float](), begin_s
        if rate_per_s <= 0:
            return found
        mean_s = burst / rate_per_s
        while (at_s := at_s + (mean_s if regular else float(draw.exponential(mean_s)))) < end_s:
            found += [at_s] * burst
        return found

    def requests(
        self,
        kind: str,
        rate_per_s: float,
        span_s: tuple[float, float],
        mix: Mix | None = None,
        *,
        tenant: str | None = None,
        burst: int = 1,
        regular: bool = False,
        reader: Reader = STEADY,
        is_culprit: bool = False,
    ) -> list[PlannedRequest]:
        """Open-loop requests of one mix; each has a random tenant unless one is given."""
        draw, of_mix = self.rng(f"requests of {kind}"), mix or self.mix
        return [
            PlannedRequest(
                at_s=at_s,
                body=of_mix.body(draw),
                tenant=tenant or TENANTS[int(draw.integers(len(TENANTS)))],
                reader=reader,
                is_culprit=is_culprit,
            )
            for at_s in self.arrival_times(kind, rate_per_s, *span_s, burst=burst, regular=regular)
        ]

    def baseline(
        self, span_s: tuple[float, float] | None = None, burst: int = 1
    ) -> list[PlannedRequest]:
        """Baseline traffic, by default from beginning to end."""
        return self.requests(
            "usual", self.rate_per_s, span_s or (0.0, self.phases.end_s), burst=burst
        )

    @property
    def fault_span_s(self) -> tuple[float, float]:
        return self.phases.span_s(Phase.FAULT)

    @property
    def whole_span_s(self) -> tuple[float, float]:
        return 0.0, self.phases.end_s


def without(requests: list[PlannedRequest], span_s: tuple[float, float]) -> list[PlannedRequest]:
    """Requests without those in a span."""
    return [request for request in requests if not span_s[0] <= request.at_s < span_s[1]]
