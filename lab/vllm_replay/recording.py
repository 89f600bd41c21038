"""A recorded run of an attached vLLM, as the calls of its scheduler in their order.

What came from outside is in the record: sequences, aborts, when grammars were ready. So is the
order of its calls of `schedule` and `update_from_output`, by their stamps, with any number of
steps between them (asynchronous scheduling).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from lab.replay.recorded import NotReplayable, RecordedRun, RecordedSequence, read_runs
from lab.vllm_replay.protocol import (
    Arrive,
    Build,
    Command,
    Commit,
    Finish,
    Flush,
    GrammarIsReady,
    Plan,
)
from lab.vllm_replay.settings import ENGINE, build_of
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, Outcome, WaitReason
from telemetry.facts.records import Fact, RequestEnded

_RANKS: dict[type, int] = {Finish: 0, Commit: 1, Plan: 3}  # aborts come before a step's tokens
_BY_LENGTH = frozenset({EndReason.MAX_TOKENS, EndReason.CONTEXT})


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened at `at_ns`; steps have their recorded numbers."""

    at_ns: int
    command: Command


@dataclass(frozen=True, slots=True)
class VllmRun:
    """The record of one engine core. `build` is its scheduler. `grammar_ready_ns` has when the
    grammar of each sequence that had to wait for one was ready. `run.others` has an EngineIdled
    wherever no sequence was live."""

    run: RecordedRun
    build: Build
    grammar_ready_ns: dict[int, int]

    @property
    def depth(self) -> int:
        """How many steps were in flight at most."""
        return self.run.depth

    @property
    def missing(self) -> str | None:
        """What is not in the record, so that decisions cannot be compared; None: nothing."""
        numbers = sorted(self.run.steps)
        if numbers and numbers[0] > 0:
            return f"its first {numbers[0]} steps are missing: what was in the cache is not known"
        lost = numbers[-1] + 1 - len(numbers) if numbers else 0
        return f"{lost} of its steps are missing" if lost else None

    @property
    def steps(self) -> list[StepRecorded]:
        """In the order of their plans."""
        return sorted(self.run.steps.values(), key=lambda step: step.begin_ns)

    def moments(self) -> list[Moment]:
        """Everything that its scheduler was told, in order. Steps that were not committed are left
        out."""
        found = [*self._steps_moments(), *self._others_moments()]
        return sorted(found, key=lambda one: (one.at_ns, _RANKS.get(type(one.command), 2)))

    def arrive(self, sequence: RecordedSequence) -> Arrive:
        """The command with which it comes again."""
        entry, end = sequence.entry, sequence.end
        finished = end is not None and end.reason.outcome is Outcome.FINISHED
        by_token = end is not None and finished and end.reason not in _BY_LENGTH
        return Arrive(
            seq_id=entry.seq_id,
            prompt_tokens=entry.prompt_tokens,
            max_tokens=entry.max_tokens,
            aliases=tuple(sequence.block_aliases) if sequence.is_cacheable else None,
            priority=entry.priority,
            arrival=entry.at_ns,
            end_output=end.output_tokens if by_token and end is not None else None,
            is_constrained=entry.constrained,
            waits_for_grammar=entry.seq_id in self.grammar_ready_ns,
        )

    @property
    def aborted(self) -> list[SequenceEnded]:
        """Ends that the scheduler was told, in the order in which it freed their blocks."""
        return [
            fact
            for fact in self.run.facts
            if isinstance(fact, SequenceEnded) and fact.reason.outcome is not Outcome.FINISHED
        ]

    @property
    def stopped_by_front_end(self) -> frozenset[int]:
        """Sequences that were aborted because their request had finished: at a stop string, which
        only the front end sees."""
        owners = self.run.owners
        finished = {
            fact.request_id
            for fact in self.run.others
            if isinstance(fact, RequestEnded) and fact.reason.outcome is Outcome.FINISHED
        }
        return frozenset(e.seq_id for e in self.aborted if owners.get(e.seq_id) in finished)

    def _steps_moments(self) -> Iterable[Moment]:
        for step in self.run.steps.values():
            yield Moment(step.begin_ns, Plan(step.step_id))
            yield Moment(step.collected_ns, Commit(step.step_id))

    def _others_moments(self) -> Iterable[Moment]:
        for sequence in self.run.sequences.values():
            if isinstance(sequence.entry, SequenceQueued):
                yield Moment(sequence.entry.at_ns, self.arrive(sequence))
        for end in self.aborted:
            yield Moment(end.at_ns, Finish(end.seq_id))
        for seq_id, at_ns in self.grammar_ready_ns.items():
            yield Moment(at_ns, GrammarIsReady(seq_id))
        for fact in self.run.facts:
            if isinstance(fact, CacheFlushed):
                yield Moment(fact.at_ns, Flush())


def read_vllm_runs(facts: Iterable[Fact]) -> list[VllmRun]:
    """The run of each engine core in a journal. Raises NotReplayable."""
    starts: list[EngineStarted] = []

    def as_ours() -> Iterable[Fact]:
        for fact in facts:
            if isinstance(fact, EngineStarted):
                starts.append(fact)
                yield _with_possible_limits(fact)
            else:
                yield fact

    runs = read_runs(as_ours(), ENGINE)
    return [_read(run, started) for run, started in zip(runs, starts, strict=True)]


def is_of_vllm(facts: Iterable[Fact]) -> bool:
    """Whether the first engine that started was vLLM."""
    started = next((fact for fact in facts if isinstance(fact, EngineStarted)), None)
    return started is not None and started.engine == ENGINE


def _with_possible_limits(started: EngineStarted) -> EngineStarted:
    """A start that `read_runs` takes. Its limits are those of our scheduler, which has others; the
    replay uses `build_of` instead."""
    blocks = -(-started.max_model_tokens // max(1, started.block_tokens))
    return replace(
        started,
        policy="fcfs",
        budget_tokens=max(started.budget_tokens, started.max_seqs),
        blocks_total=max(started.blocks_total, blocks),
    )


def _read(run: RecordedRun, started: EngineStarted) -> VllmRun:
    if run.steps_missing:
        raise NotReplayable("recording was switched off for a while: its steps are not there")
    if any(
        row.tokens > 1 for step in run.steps.values() for row in step.rows if not row.is_prefill
    ):
        raise NotReplayable("the run has speculative tokens, which cannot be replayed yet")
    build = build_of(started)
    idled: list[Fact] = [
        EngineIdled(at_ns, 0, 0, 0, 0, started.blocks_total) for at_ns in _idle_after(run)
    ]
    deep = replace(run.started, pipeline_depth=_depth(run))
    ours = replace_fields(run, started=deep, others=[*run.others, *idled])
    return VllmRun(ours, build, _grammar_ready_ns(run))


def _depth(run: RecordedRun) -> int:
    """1, and the largest number of steps that had not come back when another was planned."""
    deepest = 1
    flying: list[int] = []
    for step in sorted(run.steps.values(), key=lambda step: step.begin_ns):
        flying = [*(end_ns for end_ns in flying if end_ns > step.begin_ns), step.collected_ns]
        deepest = max(deepest, len(flying))
    return deepest


def _idle_after(run: RecordedRun) -> Iterable[int]:
    """When a step was committed after which no sequence was live."""
    came = sorted(sequence.entry.at_ns for sequence in run.sequences.values())
    ends = (sequence.end for sequence in run.sequences.values())
    went = sorted(end.at_ns for end in ends if end is not None)
    for step in run.steps.values():
        at_ns = step.committed_ns
        if bisect_left(came, at_ns + 1) == bisect_left(went, at_ns + 1):
            yield at_ns


def _grammar_ready_ns(run: RecordedRun) -> dict[int, int]:
    """After it was compiled, and after the last step that skipped the sequence for it."""
    ready: dict[int, int] = {}

    def not_before(seq_id: int, at_ns: int) -> None:
        sequence = run.sequences.get(seq_id)
        if sequence is not None and at_ns > sequence.entry.at_ns:
            ready[seq_id] = max(at_ns, ready.get(seq_id, 0))

    for fact in run.facts:
        if isinstance(fact, GrammarCompiled):
            not_before(fact.seq_id, fact.at_ns)
        elif isinstance(fact, StepRecorded):
            for skip in fact.skips:
                if skip.reason is WaitReason.GRAMMAR:
                    not_before(skip.seq_id, fact.planned_ns)
    return ready
