"""An executor that computes nothing, but takes the time that `Physics` gives and stamps steps as a
real one does; and a scheduler that takes CPU time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from lab.twins.gpus import Gpus
from lab.twins.physics import Machine, Physics
from service.engine.admission import Limits
from service.engine.executor import CountedAdapters, StepFailed
from service.engine.plan import Plan, Sample, StepOutcome
from service.engine.scheduler import Committed, Scheduler
from telemetry.facts.reasons import StepFailure

END_TOKEN = 1 << 50
_TOKEN = (Sample(7),)
_END = (Sample(END_TOKEN),)
_FAILED_SHARE = 0.4  # of its forward pass that a failing step computes
_DETAILS = {
    StepFailure.OUT_OF_MEMORY: "RuntimeError: DefaultCPUAllocator: can't allocate memory",
    StepFailure.KERNEL_ERROR: "RuntimeError: could not execute a primitive",
    StepFailure.RANK_LOST: "RankFailed: a rank was ended by signal #",
    StepFailure.BAD_INPUT: "IndexError: index out of range in self",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Sampling needs of a sequence. Its output number `ends_at` is an end token (None: none is);
    `sample_ns` and `mask_ns` are the CPU time of each of its tokens."""

    ends_at: int | None = None
    sample_ns: int = 0
    mask_ns: int = 0

    @property
    def is_default(self) -> bool:
        return self.ends_at is None and not self.sample_ns and not self.mask_ns


class PacedScheduler(Scheduler):
    """The production scheduler, whose planning and committing take CPU time."""

    def __init__(self, limits: Limits, machine: Machine, physics: Physics) -> None:
        super().__init__(limits)
        self._machine, self._physics = machine, physics

    def plan(self, now_ns: int) -> Plan:
        plan = super().plan(now_ns)
        self._machine.work(self._physics.plan_ns)
        return plan

    def commit(self, plan: Plan, outcome: StepOutcome) -> Committed:
        committed = super().commit(plan, outcome)
        self._machine.work(self._physics.commit_ns)
        return committed


class TwinDevice(CountedAdapters):
    """Implements `service.engine.executor.Executor` in virtual time, for a pipeline of depth 1:
    a step is computed at launch, and collecting takes no time.

    `needs` has the sampling needs of sequences that differ from the default. `fails` gives the
    failure of a plan that is launched at a time, None where it does not fail. With `gpus` steps
    have the device's own times.
    """

    def __init__(
        self,
        limits: Limits,
        physics: Physics,
        machine: Machine,
        needs: dict[int, Needs],
        draw: Random,
        fails: Callable[[Plan, int], StepFailure | None] | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        super().__init__()
        self.block_tokens = limits.block_tokens
        self.blocks_total = limits.blocks_total
        self._physics, self._machine = physics, machine
        self._needs = needs
        self._draw = draw
        self._fails = fails
        self._gpus = gpus
        self._done_ns: int | None = None
        self._slow_ns = 0
        self._outcome: StepOutcome | StepFailure | None = None

    def launch(self, plan: Plan) -> None:
        clock, machine, physics = self._machine.clock, self._machine, self._physics
        machine.work(physics.prepare_ns)
        forward_ns = clock.now_ns()
        factor = self._draw.lognormvariate(0.0, physics.noise)
        failure = None if self._fails is None else self._fails(plan, forward_ns)
        if failure is not None:
            machine.forward(physics, plan, factor * _FAILED_SHARE)
            self._outcome = failure
            return
        begun_ns = self._forward(plan, factor)
        sample_ns = clock.now_ns()
        sampled = plan.sampled_rows
        samples: list[tuple[Sample, ...]] = []
        extra_ns = mask_ns = masked_rows = 0
        for row in sampled:
            needs = self._needs.get(row.seq_id)
            if needs is None:
                samples.append(_TOKEN)
                continue
            samples.append(_END if needs.ends_at == row.output_index else _TOKEN)
            extra_ns += needs.sample_ns
            mask_ns += needs.mask_ns
            masked_rows += needs.mask_ns > 0
        if mask_ns:
            machine.work(mask_ns)
            mask_ns = clock.now_ns() - sample_ns
        machine.work(physics.sample_row_ns * len(sampled) + extra_ns)
        outcome = StepOutcome(tuple(samples), forward_ns, sample_ns, mask_ns, masked_rows)
        self._outcome = self._timed(outcome, begun_ns)

    def _forward(self, plan: Plan, factor: float) -> int:
        """Returns when the device began, which is later than asked for if it is launched late."""
        clock = self._machine.clock
        faults = [] if self._gpus is None else self._gpus.at(clock.now_ns())
        clock.advance(sum(fault.launch_ns for fault in faults))
        begun_ns = clock.now_ns()
        self._machine.forward(self._physics, plan, factor)
        took_ns = clock.now_ns() - begun_ns
        self._slow_ns = sum(int((fault.slower - 1) * took_ns) for fault in faults)
        clock.advance(self._slow_ns)
        return begun_ns

    def _timed(self, outcome: StepOutcome, begun_ns: int) -> StepOutcome:
        """The outcome with the times of the device's own clock, where it has one."""
        if self._gpus is None:
            return outcome
        done_ns, last_ns = self._machine.clock.now_ns(), self._done_ns
        self._done_ns = done_ns
        bubble_ns = 0 if last_ns is None else begun_ns - last_ns
        device, skew_ns = self._gpus.times(done_ns - begun_ns, bubble_ns, self._slow_ns)
        return replace(
            outcome,
            device=device,
            rank_skew_ns=skew_ns,
            slowest_rank=self._gpus.slowest(begun_ns, self._draw),
        )

    def collect(self) -> StepOutcome:
        outcome = self._outcome
        assert outcome is not None, "nothing was launched"
        if isinstance(outcome, StepFailure):
            raise StepFailed(f"a step fails: {outcome.value}", outcome, _DETAILS[outcome])
        return outcome
