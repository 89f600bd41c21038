"""The loads, each as runs of the load generator. Times are in s and stretched by a scale.

    mix       six steady streams (64 in, 200 out) and a prompt of 1,500 tokens (8 out) every 6 s
    alone     the six streams without the prompts
    goodput   Poisson at shares of capacity; capacity is what a closed loop of 16 clients gets
    closed    c1, c8, c16: so many clients, 64 in and 128 out; pf: prompts of 1,500 tokens, 8 out
    tenants   B's short requests, one at a time, alone and beside 40 clients of A (240 in, 32 out)
    voice     short requests of class voice beside prompts of 4,000 tokens of class batch

Here is only what is sent; figures are taken in `figures.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.load.spec import (
    ClassSpec,
    Fixed,
    Interval,
    Lengths,
    LongTail,
    Poisson,
    ShareGpt,
    Slo,
    TailShape,
    Users,
)
from lab.load.workload.lengths import draw
from telemetry.requests.slo_policy import DEFAULT_POLICY

STREAMS, INJECTED = "streams", "injected"
CHAT, VOICE, BATCH = "chat", "voice", "batch"
FLOOD, VICTIM = "a", "b"

LENGTHS: dict[str, Lengths] = {
    "sharegpt": ShareGpt(1500, 200),
    "long-tail": LongTail(TailShape.PARETO, 32, 1500, 16, 200),
}
CLOSED = ("c1", "c8", "c16", "pf")

VOICE_LENGTHS = Fixed(32, 32)
BATCH_PROMPT, BATCH_USERS = 4000, 2
VOICE_SHARE, BATCH_SHARE = 0.2, 0.5  # of capacity, together 0.7
_VOICE_USERS = 8  # that find its capacity
_SATURATING = 16
_MEAN_OF = 20_000  # draws that a mean length is taken from


@dataclass(frozen=True)
class Run:
    """One run of the load generator: a window of `seconds`, or one that ends with the last of so
    many `requests`. `drain_s` is the longest wait for replies after it."""

    classes: tuple[ClassSpec, ...]
    seconds: float
    requests: int | None = None
    warmup_requests: int = 0
    warmup_s: float = 0.0
    drain_s: float = 60.0
    typical_drain_s: float = 5.0

    @property
    def estimated_s(self) -> float:
        """How long the load takes in s, with the probes before it."""
        return self.warmup_s + self.seconds + self.typical_drain_s + 1.5


def targets(name: str) -> Slo:
    """The targets of a class of the server's default policy, judged from the client's stamps."""
    one = DEFAULT_POLICY.of(name)
    return Slo(ttft_ms=one.ttft_ns / 1e6, itl_ms=one.itl_ns / 1e6)


def _streams() -> ClassSpec:
    return ClassSpec(name=STREAMS, lengths=Fixed(64, 200), arrivals=Users(6))


def mix(scale: float, every_s: float) -> Run:
    """Prompts are injected from `every_s` on; each 6 s, the last of four comes just before the
    window closes."""
    every = Interval(every_s)
    injected = ClassSpec(name=INJECTED, lengths=Fixed(1500, 8), arrivals=every)
    return Run((_streams(), injected), 25 * scale)


def alone() -> Run:
    """One reply each."""
    return Run((_streams(),), 7.0, requests=6, typical_drain_s=0.0)


def saturation(lengths: Lengths, scale: float) -> Run:
    """More clients than add throughput. What counts is the tokens that came in the window, so
    nobody waits for the rest."""
    users = ClassSpec(name=CHAT, lengths=lengths, arrivals=Users(_SATURATING))
    return Run((users,), 16 * scale, warmup_s=6 * scale, drain_s=0.5, typical_drain_s=0.5)


def open_loop(lengths: Lengths, rate_per_s: float, scale: float) -> Run:
    """A good reply lasts at most the TTFT target and 200 gaps within their target: longer than
    that nobody waits, and what is not there then is not good."""
    slo = targets(CHAT)
    one = ClassSpec(name=CHAT, lengths=lengths, arrivals=Poisson(rate_per_s), slo=slo)
    return Run((one,), 20 * scale, warmup_s=2 * scale, drain_s=21.0, typical_drain_s=6.0)


def closed(name: str, scale: float) -> Run:
    """One client's window ends with a reply; that of many is cut, or the last would be alone. How
    long it takes includes the request that does not count, or the first wave."""
    if name == "pf":
        one = ClassSpec(name=name, lengths=Fixed(1500, 8), arrivals=Users(1))
        return Run((one,), 12 * scale, max(1, round(4 * scale)), 1, typical_drain_s=0.0)
    users = int(name.removeprefix("c"))
    some = ClassSpec(name=name, lengths=Fixed(64, 128), arrivals=Users(users))
    if users == 1:
        return Run((some,), 10 * scale, max(1, round(4 * scale)), 1, typical_drain_s=0.0)
    seconds = (12 if users < 16 else 16) * scale
    return Run((some,), seconds, warmup_requests=users, typical_drain_s=8.0)


def tenants(flooded: bool, scale: float) -> Run:
    """B's requests, and A's from before the first that counts."""
    victim = ClassSpec(
        name=VICTIM, lengths=Fixed(64, 16), arrivals=Users(1, pause_s=0.3),
        headers={"x-tenant": VICTIM},
    )  # fmt: skip
    if not flooded:
        return Run((victim,), 10 * scale, warmup_requests=1, typical_drain_s=1.0)
    flood = ClassSpec(
        name=FLOOD, lengths=Fixed(240, 32), arrivals=Users(40), headers={"x-tenant": FLOOD}
    )
    return Run((victim, flood), 24 * scale, warmup_s=4.0, typical_drain_s=12.0)


def voice_alone(scale: float) -> Run:
    """For its capacity."""
    one = ClassSpec(name=VOICE, lengths=VOICE_LENGTHS, arrivals=Users(_VOICE_USERS))
    return Run((one,), 8 * scale, warmup_requests=_VOICE_USERS, typical_drain_s=2.0)


def batch_alone() -> Run:
    """One prompt, for the time that it takes."""
    one = ClassSpec(name=BATCH, lengths=Fixed(BATCH_PROMPT, 16), arrivals=Users(1))
    return Run((one,), 11.0, requests=1, typical_drain_s=0.0)


def voice(voice_per_s: float, batch_s: float, classes: bool, scale: float) -> Run:
    """Voice takes its share of `voice_per_s`; batch clients pause so that theirs is taken, if a
    prompt needs `batch_s` of the machine. Without `classes` the server is not told any."""

    def headers(name: str) -> dict[str, str]:
        return {"x-slo-class": name} if classes else {}

    short = ClassSpec(
        name=VOICE, lengths=VOICE_LENGTHS, arrivals=Poisson(VOICE_SHARE * voice_per_s),
        slo=targets(VOICE), headers=headers(VOICE),
    )  # fmt: skip
    long = ClassSpec(
        name=BATCH, lengths=Fixed(BATCH_PROMPT, 16),
        arrivals=Users(BATCH_USERS, pause_s=batch_pause_s(batch_s)), headers=headers(BATCH),
    )  # fmt: skip
    return Run((short, long), 40 * scale, typical_drain_s=12.0)


def batch_pause_s(batch_s: float) -> float:
    """A client's cycle is the pause and a reply, which voice makes longer by its share."""
    return BATCH_USERS * batch_s / BATCH_SHARE - batch_s / (1 - VOICE_SHARE)


def mean_output_tokens(lengths: Lengths) -> float:
    rng = np.random.default_rng(0)
    return sum(draw(lengths, rng)[1] for _ in range(_MEAN_OF)) / _MEAN_OF
