"""A closed loop of users on the modelled device: each sends again when its reply is complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.replay.iteration_cost import IterationCost
from lab.replay.modelled_device import ModelledDevice
from lab.replay.noise import NoNoise
from lab.replay.recorded import NotReplayable
from lab.simulation.virtual_engine import VirtualEngine
from service.engine.admission import Limits
from service.engine.inbox import Submit
from service.engine.plan import Emission, SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
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
    """Number of users, and the lengths of their prompts, which share nothing, and outputs."""

    count: int
    prompt_tokens: int
    output_tokens: int
    slo_class: str = ""


def closed_loop(limits: Limits, cost: IterationCost, users: Users, rounds: int = 6) -> list[Fact]:
    """Facts of `rounds` requests a user, in the order of time, without the gateway's facts of the
    first round, in which all arrive at once. Raises NotReplayable for requests that are longer than
    the model's context."""
    if users.prompt_tokens + users.output_tokens > limits.max_model_tokens:
        raise NotReplayable(
            f"{users.prompt_tokens} tokens of prompt and {users.output_tokens} of output are more "
            f"than the {limits.max_model_tokens} that a request may have"
        )
    return _ClosedLoop(limits, cost, users, rounds).run()


def later_rounds_s(facts: Iterable[Fact], users: Users) -> float:
    """Seconds from the end of the first round to that of the last one: the time in which the
    requests were served that the gateway's facts tell of. A user who waits for a slot in the second
    round waits for those who are in their first."""
    ended_ns = {fact.seq_id: fact.at_ns for fact in facts if isinstance(fact, SequenceEnded)}
    first_ns = max(at_ns for number, at_ns in ended_ns.items() if number < users.count)
    return (max(ended_ns.values()) - first_ns) / 1e9


class _ClosedLoop:
    def __init__(self, limits: Limits, cost: IterationCost, users: Users, rounds: int) -> None:
        self._users, self._cost = users, cost
        self._clock = ManualClock()
        device = ModelledDevice(limits, cost, NoNoise(), self._clock, lambda seq, index: 0)
        self._engine = VirtualEngine(Scheduler(limits), device, self._clock, lambda: device.gap_ns)
        self._sent, self._left = 0, users.count * rounds
        self._gateway: list[Fact] = []

    def run(self) -> list[Fact]:
        for number in range(min(self._left, self._users.count)):
            self._send(number)
        engine = self._engine.run(self._on_emissions)
        return sorted([*self._gateway, *engine], key=fact_ns)

    def _on_emissions(self, emissions: list[Emission]) -> None:
        """A user whose request has ended sends the next one."""
        for emission in emissions:
            if emission.end is not None:
                self._record_end(emission.seq_id, emission.end)
                if self._sent < self._left:
                    self._send(self._clock.now_ns())

    def _send(self, at_ns: int) -> None:
        """The engine needs a while to see what the gateway has accepted."""
        users, number = self._users, self._sent
        self._sent += 1
        name = f"user-{number}"
        if number >= users.count:
            self._gateway += [
                RequestAccepted(
                    name, at_ns, _TRACE, None, None, None, "/v1/completions", "text_completion",
                    "", users.slo_class,
                ),
                RequestParsed(
                    name, at_ns, "planned", True, 1, users.output_tokens, 0.0, 1.0, 0, None
                ),
                RequestTokenized(name, at_ns, users.prompt_tokens),
                SequenceSubmitted(name, at_ns, number, 0),
            ]  # fmt: skip
        self._engine.send_at(
            at_ns + self._cost.wake_ns,
            Submit(
                seq_id=number,
                prompt=[-1 - number] * users.prompt_tokens,
                max_tokens=users.output_tokens,
                sampling=SamplingParams(temperature=0.0),
                cache_prefix=False,
            ),
        )

    def _record_end(self, number: int, reason: EndReason) -> None:
        if number < self._users.count:
            return
        now_ns = self._clock.now_ns()
        tokens = self._users.output_tokens if reason is EndReason.MAX_TOKENS else 0
        self._gateway.append(
            RequestEnded(
                f"user-{number}", now_ns, reason, 200, None, tokens, None, now_ns, 0, 0, None
            )
        )
