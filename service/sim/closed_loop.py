"""So many users, each of whom asks again as soon as he is answered, by a fitted cost of steps."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.scheduler import Scheduler
from service.sim.modelled_device import ModelledDevice
from service.sim.noise import NoNoise
from service.sim.turn_cost import TurnCost
from telemetry.clock import ManualClock
from telemetry.reasons import EndReason
from telemetry.recorder import Lane
from telemetry.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)

_TRACE = "0" * 31 + "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """What they ask for: fresh prompts of one length, outputs of another."""

    count: int
    prompt_tokens: int
    output_tokens: int
    slo_class: str = ""


def closed_loop(limits: Limits, cost: TurnCost, users: Users, rounds: int = 6) -> list[Fact]:
    """Facts of `rounds` requests a user, in the order of time; the first of each, when all
    come at once, is left out."""
    return _ClosedLoop(limits, cost, users).run(rounds)


class _ClosedLoop:
    def __init__(self, limits: Limits, cost: TurnCost, users: Users) -> None:
        self._users, self._cost = users, cost
        self._clock = ManualClock()
        self._inbox, self._lane = Inbox(), Lane(1 << 62)
        self._device = ModelledDevice(limits, cost, NoNoise(), self._clock, lambda seq, index: 0)
        self._loop = EngineLoop(
            Scheduler(limits), self._device, self._inbox, self._lane, self._clock
        )
        self._due: list[tuple[int, int]] = []
        self._asked: dict[int, int] = {}
        self._gateway: list[Fact] = []

    def run(self, rounds: int) -> list[Fact]:
        users, engine = self._users, list[Fact]()
        left = users.count * rounds
        for number in range(min(left, users.count)):
            heapq.heappush(self._due, (number, number))
        asked = users.count
        while self._due or self._loop.has_work or len(self._inbox):
            while self._due and self._due[0][0] <= self._clock.now_ns():
                self._ask(heapq.heappop(self._due)[1])
            if not self._loop.has_work and not len(self._inbox):
                self._clock.advance(max(0, self._due[0][0] - self._clock.now_ns()))
                continue
            for emission in self._loop.step():
                if emission.end is not None:
                    self._answered(emission.seq_id, emission.end)
                    if asked < left:
                        at_ns = self._clock.now_ns() + self._cost.wake_ns
                        heapq.heappush(self._due, (at_ns, asked))
                        asked += 1
            self._clock.advance(self._device.gap_ns)
            engine += self._lane.drain()
        return sorted([*self._gateway, *engine], key=fact_ns)

    def _ask(self, number: int) -> None:
        users, now_ns = self._users, self._clock.now_ns()
        self._asked[number] = now_ns
        name = f"user-{number}"
        if number >= users.count:
            self._gateway += [
                RequestAccepted(
                    name, now_ns, _TRACE, None, None, None, "/v1/completions", "text_completion",
                    "", users.slo_class,
                ),
                RequestParsed(
                    name, now_ns, "planned", True, 1, users.output_tokens, 0.0, 1.0, 0, None
                ),
                RequestTokenized(name, now_ns, users.prompt_tokens),
                SequenceSubmitted(name, now_ns, number, 0),
            ]  # fmt: skip
        self._inbox.put(
            Submit(
                seq_id=number,
                prompt=[-1 - number] * users.prompt_tokens,
                max_tokens=users.output_tokens,
                sampling=SamplingParams(temperature=0.0),
                cache_prefix=False,
            )
        )

    def _answered(self, number: int, reason: EndReason) -> None:
        if number < self._users.count:
            return
        now_ns = self._clock.now_ns()
        tokens = self._users.output_tokens if reason is EndReason.MAX_TOKENS else 0
        self._gateway.append(
            RequestEnded(
                f"user-{number}", now_ns, reason, 200, None, tokens, None, now_ns, 0, 0, None
            )
        )
