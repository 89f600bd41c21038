"""One engine of a simulated fleet: production scheduler and loop, a device that only takes time.

Time passes by the cost of a step, as in `lab.simulation`; contents of blocks are not kept, which is
what makes a thousand engines affordable: that they are right is checked there, for one. A step is
computed when it begins, and what it emits is stamped with its end. Nothing inside a step depends on
what comes meanwhile: commands wait in the inbox until the next one, as in production.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from lab.simulation.sim_executor import FittedCost, LinearCost
from lab.simulation.virtual_engine import VirtualEngine
from service.engine.admission import Limits
from service.engine.executor import CountedAdapters
from service.engine.fairness import Policy
from service.engine.inbox import Command, SetStepCost, Submit
from service.engine.limits_record import record_of
from service.engine.plan import DecodeRow, Emission, Plan, PrefillChunk, Sample, StepOutcome
from service.engine.scheduler import Scheduler
from service.fleet.routing.anchors import STRIDE_BLOCKS, anchor_of
from service.fleet.wire.load_fold import LoadFold
from service.fleet.wire.messages import EngineLoad
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineStarted, SequenceAdmitted, StepCostSet
from telemetry.facts.fleet.routing_records import EngineReported, PrefixChanges

KEY = b"a simulated fleet"
IDENTITY = "sim"
END_TOKEN = 1
_REST_NS = 50_000
_SPREAD = 1.05

COST = LinearCost(
    base_ns=25_000_000, prefill_token_ns=120_000, decode_row_ns=500_000, context_token_ns=400
)
"""The cost of a step of a model of about eight billion parameters on a small GPU, in round
numbers."""
LIMITS = Limits(
    block_tokens=16,
    blocks_total=1536,
    max_model_tokens=8192,
    max_seqs=16,
    budget_tokens=2048,
    chunked_prefill=True,
    queue_limit_requests=1024,
    queue_limit_tokens=1_000_000,
    policy=Policy.VTC,
    auto_budget=True,
    slo_order=True,
    cache_identity=IDENTITY,
)
"""The defaults of `phasescope serve`, on a cache of 24,576 tokens."""


def fitted(cost: LinearCost | FittedCost) -> SetStepCost:
    """The true cost, as a fit would have it, with at least the spread of a quiet machine."""
    found = cost.as_fitted()
    return replace(found, spread=max(found.spread, _SPREAD))


def as_fact(cost: LinearCost) -> StepCostSet:
    return StepCostSet(at_ns=0, step_id=0, **asdict(fitted(cost)))


class TimedDevice(CountedAdapters):
    """Implements `service.engine.executor.Executor`: a step takes its cost, times `slow`. A
    sequence ends with `END_TOKEN` at the length that it was given; `said` gives its other outputs
    by their index."""

    def __init__(self, clock: ManualClock, cost: LinearCost | FittedCost, limits: Limits) -> None:
        super().__init__()
        self.block_tokens, self.blocks_total = limits.block_tokens, limits.blocks_total
        self.slow: Callable[[int], float] = lambda now_ns: 1.0
        self.said: Callable[[int, int], int] = lambda seq_id, index: token_of(seq_id)
        self.lengths: dict[int, int] = {}
        self._clock, self._cost = clock, cost
        self._launched: deque[tuple[Plan, int]] = deque()
        self._end = (Sample(END_TOKEN),)

    def launch(self, plan: Plan) -> None:
        self._launched.append((plan, self._clock.now_ns()))

    def collect(self) -> StepOutcome:
        plan, begin_ns = self._launched.popleft()
        samples = tuple([self._sample(row) for row in plan.sampled_rows])
        span_ns = int(self._cost.step_ns(plan) * self.slow(begin_ns))
        self._clock.advance(max(0, begin_ns + span_ns - self._clock.now_ns()))
        return StepOutcome(samples, begin_ns, begin_ns + span_ns)

    def _sample(self, row: DecodeRow | PrefillChunk) -> tuple[Sample, ...]:
        if row.output_index + 1 >= self.lengths[row.seq_id]:
            return self._end
        return (Sample(self.said(row.seq_id, row.output_index)),)


def _started(limits: Limits, at_ns: int) -> EngineStarted:
    return EngineStarted(
        at_ns=at_ns,
        pid=0,
        model="simulated",
        backend="simulated",
        dtype="none",
        pipeline_depth=1,
        **record_of(limits),
    )


def token_of(seq_id: int) -> int:
    """What a sequence says, again and again: no two have the same text."""
    return 100_000 + seq_id


@dataclass(frozen=True, slots=True)
class Made:
    """A report as the engine made it. It contains the first `received` requests."""

    made_ns: int
    number: int
    received: int
    ended: int
    load: EngineLoad
    draining: bool
    prefixes: PrefixChanges | None


class SimEngine:
    """One incarnation of an engine. `next_turn_ns` is when it goes on; None: it is idle."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        now_ns: int,
        cost: LinearCost | FittedCost,
        whole_each: int,
        limits: Limits = LIMITS,
    ) -> None:
        self.name, self.incarnation = name, incarnation
        self.block_tokens = limits.block_tokens
        self.clock = ManualClock(now_ns)
        self.device = TimedDevice(self.clock, cost, limits)
        self.scheduler = Scheduler(limits)
        self.next_turn_ns: int | None = None
        self.dead_ns: int | None = None
        self.draining = False
        self.report_due = False
        self.live: set[int] = set()
        self.prompt_tokens = self.hit_tokens = 0
        self.admitted: list[SequenceAdmitted] = []  # by the last turn
        self._virtual = VirtualEngine(self.scheduler, self.device, self.clock, lambda: 0)
        self._held = self.scheduler.prefix.watch(STRIDE_BLOCKS) if whole_each else None
        self._whole_each = whole_each
        self._received = self._ended = self._unread = self._reports = 0
        self._loads = LoadFold()
        self._loads.take([_started(limits, now_ns)])
        self._virtual.send(fitted(cost))
        self._virtual.turn()
        self._loads.take(self._virtual.take_facts())

    @property
    def is_busy(self) -> bool:
        return self.next_turn_ns is not None

    def submit(self, command: Submit, output_tokens: int) -> None:
        """A request has come."""
        self.device.lengths[command.seq_id] = output_tokens
        self.live.add(command.seq_id)
        self._received += 1
        self._unread += 1
        self._virtual.send(command)

    def command(self, command: Command) -> None:
        """Anything but a request."""
        self._virtual.send(command)

    def turn(self, now_ns: int) -> list[Emission] | None:
        """One iteration of the loop, which ends at `clock`; None: there is nothing to do."""
        self.clock.advance(max(0, now_ns - self.clock.now_ns()))
        if not self._virtual.is_due():
            return None
        self._unread = 0
        emissions = self._virtual.turn()
        facts = self._virtual.take_facts()
        self._loads.take(facts)
        self.admitted.clear()
        for fact in facts:
            if isinstance(fact, SequenceAdmitted):
                self.admitted.append(fact)
                self.prompt_tokens += fact.known_tokens
                self.hit_tokens += fact.hit_tokens
        for emission in emissions:
            if emission.end is not None:
                self.live.remove(emission.seq_id)
                del self.device.lengths[emission.seq_id]
                self._ended += 1
        return emissions

    def rest(self) -> None:
        """The loop's own work between two steps."""
        self.clock.advance(_REST_NS)

    def report(self, now_ns: int) -> Made:
        """What the engine says of itself between two steps."""
        self._reports += 1
        return Made(
            now_ns,
            self._reports,
            self._received - self._unread,
            self._ended,
            self._loads.load(),
            self.draining,
            self._prefixes(),
        )

    def as_fact(self, made: Made, at_ns: int, age_ns: int) -> EngineReported:
        """A report as the router takes it, when it comes."""
        load = asdict(made.load)
        return EngineReported(
            at_ns=at_ns,
            engine=self.name,
            incarnation=self.incarnation,
            number=made.number,
            age_ns=age_ns,
            received=made.received,
            ended=made.ended,
            draining=made.draining,
            prefixes=made.prefixes,
            **load,
        )

    def held_anchors(self) -> set[int]:
        """What it holds in truth."""
        if self._held is None:
            return set()
        return {anchor_of(digest, KEY) for digest in self._held.digests}

    def _prefixes(self) -> PrefixChanges | None:
        if self._held is None:
            return None
        changes = self._held.take(self._reports % self._whole_each == 0)
        return PrefixChanges(
            self._reports,
            changes.whole,
            tuple([anchor_of(one, KEY) for one in changes.added]),
            tuple([anchor_of(one, KEY) for one in changes.removed]),
        )
