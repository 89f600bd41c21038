"""Exact replay: the production loop over a recorded run, with the recorded durations.

If each plan, admission, preemption and end comes out as recorded, then the record is complete
and the scheduler is a function of it; a replay with changes is then as good as its durations.
Only the first difference is reported, because nothing after it is comparable.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import msgspec

from lab.replay.recorded import NotReplayable, RecordedRun
from lab.replay.recorded_adapters import ExactAdapters
from lab.replay.recorded_drafts import RecordedDrafts, drafts_of
from service.engine.executor import CountedAdapters, StepFailed
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import DecodeRow, Plan, PrefillChunk, Sample, StepOutcome
from service.engine.scheduler import Scheduler
from telemetry.facts.engine_records import (
    EngineIdled,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepAborted,
    StepRecorded,
)
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

# fields that are no decisions: stamps, device times, block aliases
_NOT_COMPARED = frozenset(
    {
        "device",
        "rank_skew_ns",
        "slowest_rank",
        "blocks_sealed",
        "at_ns",
        "begin_ns",
        "planned_ns",
        "launched_ns",
        "forward_ns",
        "sample_ns",
        "collected_ns",
        "committed_ns",
        "place_ns",
    }
)


class Difference(msgspec.Struct, frozen=True):
    """The first decision that differs. `step_id` is None before any step."""

    step_id: int | None
    what: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"after step {self.step_id}: {self.what}: recorded {self.recorded}, "
            f"replayed {self.replayed}"
        )


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """How many decisions came out the same. `decisions` counts the facts compared; the others
    count kinds of them."""

    steps: int
    decisions: int
    admitted: int
    chunks: int
    preempted: int
    ended: int
    difference: Difference | None

    @property
    def holds(self) -> bool:
        return self.difference is None


class _AliasMapping:
    """A one-to-one map between recorded and replayed block aliases, which may have other numbers:
    equal ones must stay equal and different ones different."""

    def __init__(self) -> None:
        self._replayed: dict[int, int] = {}
        self._recorded: dict[int, int] = {}

    def are(self, recorded: tuple[int, ...] | None, replayed: tuple[int, ...] | None) -> bool:
        if recorded is None or replayed is None:
            return recorded is replayed
        return len(recorded) == len(replayed) and all(
            self._replayed.setdefault(one, other) == other
            and self._recorded.setdefault(other, one) == one
            for one, other in zip(recorded, replayed, strict=True)
        )


class ReplayClock:
    """A clock that shows `time_ns`, which the replay sets."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns


class _Diverged(Exception):
    """A plan differs from the recorded one; the rest cannot be computed."""


class _RecordedDevice(CountedAdapters):
    """An executor with recorded durations, failures and numbers of tokens."""

    def __init__(self, run: RecordedRun, clock: ReplayClock) -> None:
        super().__init__()
        self._run = run
        self._clock = clock
        self._launched: deque[tuple[Plan, StepRecorded | None]] = deque()
        self.block_tokens = run.limits.block_tokens
        self.blocks_total = run.limits.blocks_total

    @property
    def due_ns(self) -> int | None:
        """When the oldest launched step was collected; None for one that was not."""
        step = self._launched[0][1] if self._launched else None
        return None if step is None else step.collected_ns

    def launch(self, plan: Plan) -> None:
        """A step beyond the last one of the record was in flight when the record ended."""
        step = self._run.steps.get(plan.step_id)
        beyond = step is None and plan.step_id > self._run.last_step_id
        if not beyond and (step is None or step.begin_ns != self._clock.now_ns()):
            raise _Diverged(f"step {plan.step_id} was not launched then")
        self._launched.append((plan, step))

    def collect(self) -> StepOutcome:
        plan, step = self._launched.popleft()
        if step is None:
            raise _Diverged(f"step {plan.step_id} was never collected")
        self._clock.time_ns = step.collected_ns
        if step.step_id in self._run.failed:
            raise _failed(step.step_id, self._run.failed[step.step_id])
        given = {row.seq_id: row.sampled for row in step.rows if not row.wasted}
        samples = tuple(self._samples(row, given.get(row.seq_id, 1)) for row in plan.sampled_rows)
        return StepOutcome(
            samples,
            step.forward_ns,
            step.sample_ns,
            step.mask_ns,
            step.masked_rows,
            score_ns=step.score_ns,
        )

    def _samples(self, row: DecodeRow | PrefillChunk, count: int) -> tuple[Sample, ...]:
        outputs = range(row.output_index, row.output_index + max(1, count))
        return tuple(Sample(output_token(self._run, row.seq_id, index)) for index in outputs)


def _failed(step_id: int, aborted: StepAborted | None) -> StepFailed:
    """A recorded failure; older records have no kind."""
    said = f"step {step_id} failed when it was recorded"
    return StepFailed(said) if aborted is None else StepFailed(said, aborted.failure)


def output_token(run: RecordedRun, seq_id: int, index: int) -> int:
    """The token id that stands for output `index` of a sequence."""
    return run.sequences[seq_id].output_token(index, run.limits.block_tokens)


def replay_exactly(run: RecordedRun) -> Identity:
    """Replay a run and compare all decisions. Raises NotReplayable if steps are missing."""
    if run.steps_missing:
        raise NotReplayable("recording was switched off for a while: its steps are not there")
    return _Exact(run).identity()


class _Exact:
    """Replays one run, iteration by iteration."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._clock = ReplayClock()
        self._device = _RecordedDevice(run, self._clock)
        self._inbox, self._lane = Inbox(), Lane(1 << 62)
        self._drafts = drafts_of(run)
        scheduler = Scheduler(run.limits, self._proposer)
        self._loop = EngineLoop(
            scheduler,
            self._device,
            self._inbox,
            self._lane,
            self._clock,
            run.depth,
            ExactAdapters(run.adapters),
        )
        self._step_id: int | None = None
        self._counts: Counter[str] = Counter()
        self._names = _AliasMapping()

    def identity(self) -> Identity:
        difference = self._difference()
        counts = self._counts
        return Identity(
            steps=counts["steps"],
            decisions=counts["decisions"],
            admitted=counts["admitted"],
            chunks=counts["chunks"],
            preempted=counts["preempted"],
            ended=counts["ended"],
            difference=difference,
        )

    def _proposer(self, submit: Submit) -> RecordedDrafts:
        return RecordedDrafts(self._drafts.get(submit.seq_id, {}), len(submit.prompt))

    def _difference(self) -> Difference | None:
        recorded = iter(self._run.facts)
        iterations = iter(self._run.iterations)
        while True:
            iteration = next(iterations, None)
            try:
                while self._overlapping(None if iteration is None else iteration.at_ns):
                    self._loop.step()
                if iteration is not None:
                    self._clock.time_ns = max(self._clock.time_ns, iteration.at_ns)
                    for command in iteration.commands:
                        self._inbox.put(command)
                    (self._loop.step if iteration.plans else self._loop.apply_commands)()
            except (_Diverged, AssertionError) as error:
                return Difference(self._step_id, "the plan", "another", str(error))
            for fact in self._lane.drain():
                if not isinstance(fact, EngineIdled | StepAborted) and not self._run.is_beyond(
                    fact
                ):
                    found = self._compare(recorded, fact)
                    if found is not None:
                        return found
            if iteration is None:
                return self._rest(recorded)

    def _overlapping(self, until_ns: int | None) -> bool:
        """Whether a step in flight was collected before `until_ns`, by an iteration that launched
        nothing and so is not recorded."""
        due_ns = self._device.due_ns
        return due_ns is not None and (until_ns is None or due_ns <= until_ns)

    def _compare(self, recorded: Any, replayed: Fact) -> Difference | None:
        known = next(recorded, None)
        if isinstance(replayed, StepRecorded):
            self._step_id = replayed.step_id
        if known is None:
            return Difference(self._step_id, type(replayed).__name__, "nothing", str(replayed))
        if type(known) is not type(replayed):
            return Difference(self._step_id, "what happened", str(known), str(replayed))
        for name in known.__struct_fields__:
            if name in _NOT_COMPARED:
                continue
            was, is_now = getattr(known, name), getattr(replayed, name)
            if not self._agree(known, name, was, is_now):
                what = f"{type(known).__name__}.{name}"
                return Difference(self._step_id, what, str(was), str(is_now))
        self._count(replayed)
        return None

    def _agree(self, known: Fact, field: str, was: Any, is_now: Any) -> bool:
        """Whether a field agrees; only older records have block aliases in SequenceEnded."""
        if field == "blocks" and isinstance(known, SequenceQueued):
            return self._names.are(was, is_now)
        return was == is_now or (field == "blocks" and isinstance(known, SequenceEnded))

    def _count(self, fact: Fact) -> None:
        counts = self._counts
        counts["decisions"] += 1
        match fact:
            case StepRecorded():
                counts["steps"] += 1
                counts["chunks"] += sum(row.is_prefill for row in fact.rows)
                counts["preempted"] += len(fact.preempted)
            case SequenceAdmitted():
                counts["admitted"] += 1
            case SequenceEnded():
                counts["ended"] += 1
            case _:
                pass

    def _rest(self, recorded: Any) -> Difference | None:
        """The first recorded decision that was not replayed."""
        known = next(recorded, None)
        if known is None:
            return None
        return Difference(self._step_id, "the end", str(known), "nothing")
