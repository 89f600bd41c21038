"""A recorded run of one engine process, as the input of a replay.

The record has what came from outside: submissions and their limits, cancels, pauses, when grammars
were ready, which costs were set. It has no texts. Block aliases stand for tokens, equal wherever
blocks of text were equal, so that the prefix cache has exactly the same hits; and a made-up end
token stands after as many outputs as were recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from lab.replay.recorded_adapters import ADAPTER_DECISIONS, RecordedAdapter, recorded_adapters
from lab.replay.recorded_commands import command_of
from lab.replay.recorded_kv import KV_DECISIONS, kv_command
from service.engine.admission import Limits
from service.engine.inbox import Cancel, Command, Submit
from service.engine.limits_record import limits_of, with_runtime
from service.engine.plan import Grammar, GrammarKind, SamplingParams
from service.engine.prompt_output import Pooling, PromptOutput
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineStarted,
    GrammarCompiled,
    LimitsSet,
    RecordingSet,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceRefused,
    SequenceResumed,
    StepAborted,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import EngineDied, Fact, SequenceSubmitted, fact_ns

OURS = "phasescope"
END_TOKEN = 1 << 50
_BY_END_TOKEN = frozenset({EndReason.EOS, EndReason.STOP_TOKEN})
_NO_TOKEN = -1  # every engine refuses it
_STOPS: dict[EndReason | None, tuple[int, ...]] = {
    EndReason.STOP_TOKEN: (END_TOKEN,),
    EndReason.INVALID_TOKEN: (_NO_TOKEN,),
}
# decisions of the engine; an exact replay has to make the same
_DECISIONS = (
    SequenceQueued,
    SequenceRefused,
    SequenceAdmitted,
    SequencePaused,
    SequenceResumed,
    SequenceEnded,
    GrammarCompiled,
    CacheFlushed,
    StepCostSet,
    LimitsSet,
    StepRecorded,
    *ADAPTER_DECISIONS,
    *KV_DECISIONS,
)
# ends that the scheduler decides; all others were commands
_ENGINE_ENDS = _BY_END_TOKEN | {
    EndReason.MAX_TOKENS,
    EndReason.CONTEXT,
    EndReason.DEADLINE,
    EndReason.EXECUTOR_ERROR,
    EndReason.GRAMMAR_INVALID,
    EndReason.ADAPTER_FAILED,
    EndReason.ADAPTER_UNLOADED,
}


class NotReplayable(Exception):
    """The record does not carry what a replay needs; the message is one line."""


@dataclass(slots=True)
class RecordedSequence:
    """One submission and its end. `end` is None if it was live at the end of the record;
    `block_aliases` are of its full blocks, as far as recorded; `submitted_ns` is when the
    gateway submitted it, None where that is not recorded."""

    entry: SequenceQueued | SequenceRefused
    block_aliases: list[int] = field(default_factory=list)
    end: SequenceEnded | None = None
    submitted_ns: int | None = None

    @property
    def seq_id(self) -> int:
        return self.entry.seq_id

    @property
    def is_cacheable(self) -> bool:
        return isinstance(self.entry, SequenceQueued) and self.entry.blocks is not None

    def token(self, position: int, block_tokens: int) -> int:
        """The token id that stands for a position of its text."""
        block = position // block_tokens
        if block < len(self.block_aliases):
            return self.block_aliases[block]
        return -1 - self.seq_id

    def output_token(self, index: int, block_tokens: int) -> int:
        """The token id that stands for output `index`: an end token for the last one, if the
        sequence ended by one."""
        end = self.end
        by_token = end is not None and end.reason in _BY_END_TOKEN
        if by_token and end is not None and index == end.output_tokens - 1:
            return END_TOKEN
        return self.token(self.entry.prompt_tokens + index, block_tokens)

    def submit(self, block_tokens: int) -> Submit:
        """The command that submits it in a replay."""
        entry = self.entry
        reason = self.end.reason if self.end is not None else None
        return Submit(
            seq_id=entry.seq_id,
            prompt=[self.token(place, block_tokens) for place in range(entry.prompt_tokens)],
            max_tokens=entry.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            end_token_ids=() if reason is EndReason.STOP_TOKEN else (END_TOKEN,),
            stop_token_ids=frozenset(_STOPS.get(reason, ())),
            tenant=entry.tenant,
            priority=entry.priority,
            deadline_ns=entry.deadline_ns,
            first_token_by_ns=entry.first_token_by_ns,
            ttft_target_ns=entry.ttft_target_ns,
            itl_target_ns=entry.itl_target_ns,
            cache_prefix=self.is_cacheable,
            grammar=Grammar(GrammarKind.REGEX, "") if entry.constrained else None,
            adapter=entry.adapter,
            prompt_output=_prompt_output(entry),
            receives_kv=entry.receives_kv if isinstance(entry, SequenceQueued) else 0,
            sends_kv=entry.sends_kv if isinstance(entry, SequenceQueued) else 0,
        )


def _prompt_output(entry: SequenceQueued | SequenceRefused) -> PromptOutput | None:
    if entry.pooling is not None:
        return PromptOutput(pooling=Pooling(entry.pooling))
    if entry.prompt_logprobs is not None:
        return PromptOutput(logprobs=entry.prompt_logprobs)
    return None


@dataclass(slots=True)
class Iteration:
    """One iteration of the engine loop: commands, and a plan if `plans`."""

    at_ns: int
    commands: list[Command] = field(default_factory=list)
    plans: bool = False


@dataclass(slots=True)
class RecordedRun:
    """The record of one engine process; `facts` are its decisions, in their order, and `others`
    all other facts. `limits` are those of its start."""

    started: EngineStarted
    limits: Limits
    facts: list[Fact] = field(default_factory=list)
    others: list[Fact] = field(default_factory=list)
    sequences: dict[int, RecordedSequence] = field(default_factory=dict)
    steps: dict[int, StepRecorded] = field(default_factory=dict)
    failed: dict[int, StepAborted | None] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)
    adapters: dict[int, RecordedAdapter] = field(default_factory=dict)
    last_step_id: int = -1
    died_ns: int | None = None
    steps_missing: bool = False

    @property
    def depth(self) -> int:
        return self.started.pipeline_depth

    @property
    def owners(self) -> dict[int, str]:
        """Request ids by sequence, as recorded by the gateway."""
        return {f.seq_id: f.request_id for f in self.others if isinstance(f, SequenceSubmitted)}

    def limits_in(self, begin_ns: int, end_ns: int) -> list[Limits]:
        """The limits in force at `begin_ns`, and those set in (begin, end), in order."""
        found = [self.limits]
        for fact in self.facts:
            if isinstance(fact, LimitsSet) and fact.at_ns < end_ns:
                found.append(with_runtime(self.limits, fact.limits))
                if fact.at_ns <= begin_ns:
                    found = found[-1:]
        return found

    @property
    def last_limits(self) -> Limits:
        """The limits in force at its end."""
        return self.limits_in(0, 1 << 63)[-1]

    def is_beyond(self, fact: Fact) -> bool:
        """Whether the fact is of planning a step whose record is missing at the end."""
        return isinstance(fact, SequenceAdmitted) and fact.step_id > self.last_step_id


def read_runs(facts: Iterable[Fact], engine: str = OURS) -> list[RecordedRun]:
    """The run of each process of `engine` in a journal, in order.

    Raises NotReplayable when no engine's start is recorded, or that of another engine.
    """
    readers: list[_Reader] = []
    early: list[Fact] = []
    for fact in facts:
        if isinstance(fact, EngineStarted):
            if fact.engine != engine:
                raise NotReplayable(
                    f"it is of {fact.engine}, where the scheduler of {engine} decided nothing"
                )
            readers.append(_Reader(fact))
        elif readers:
            readers[-1].take(fact)
        else:
            early.append(fact)
    if not readers:
        raise NotReplayable("no engine's start is recorded, so its limits are not known")
    for fact in early:
        readers[0].take(fact)
    return [reader.finish() for reader in readers]


class _Reader:
    """Collects one run."""

    def __init__(self, started: EngineStarted) -> None:
        self._run = RecordedRun(started, limits_of(started))
        self._commands: list[tuple[int, Command | Fact]] = []
        self._last_step: StepRecorded | None = None
        self._submitted_ns: dict[int, int] = {}

    def take(self, fact: Fact) -> None:
        run = self._run
        (run.facts if isinstance(fact, _DECISIONS) else run.others).append(fact)
        match fact:
            case StepRecorded():
                run.steps[fact.step_id] = self._last_step = fact
                for sealed in fact.blocks_sealed:
                    self._add_aliases(sealed.seq_id, sealed.first_block, sealed.blocks)
            case SequenceQueued():
                run.sequences[fact.seq_id] = RecordedSequence(fact, list(fact.blocks or ()))
                self._commands.append((fact.at_ns, fact))
            case SequenceRefused():
                run.sequences[fact.seq_id] = RecordedSequence(fact)
                self._commands.append((fact.at_ns, fact))
            case SequenceEnded():
                self._ended(fact)
            case CacheFlushed() if self._is_from_failure(fact):
                assert self._last_step is not None
                run.failed.setdefault(self._last_step.step_id)
            case StepAborted():
                run.failed[fact.step_id] = fact
            case EngineDied():
                run.died_ns = fact.at_ns
            case SequenceSubmitted():
                self._submitted_ns[fact.seq_id] = fact.at_ns
            case RecordingSet():
                run.steps_missing |= not fact.enabled
            case _:
                command = command_of(fact)
                if command is not None or isinstance(fact, KV_DECISIONS):
                    self._commands.append((fact_ns(fact), command or fact))

    def finish(self) -> RecordedRun:
        """The run, its iterations in order of time. Facts of planning the last step may be there
        without the step's record: its engine died, or the journal ends."""
        run, iterations = self._run, dict[int, Iteration]()
        run.last_step_id = max(run.steps, default=-1)
        run.adapters = recorded_adapters(run.facts)
        run.facts = [fact for fact in run.facts if not run.is_beyond(fact)]
        for seq_id, sequence in run.sequences.items():
            sequence.submitted_ns = self._submitted_ns.get(seq_id)
        for step in run.steps.values():
            iterations[step.begin_ns] = Iteration(step.begin_ns, plans=True)
        for at_ns in self._expired_between_steps():
            iterations.setdefault(at_ns, Iteration(at_ns)).plans = True
        for at_ns, what in self._commands:
            command = self._command(what)
            if command is not None:
                iterations.setdefault(at_ns, Iteration(at_ns)).commands.append(command)
        run.iterations = sorted(iterations.values(), key=lambda iteration: iteration.at_ns)
        return run

    def _command(self, what: Command | Fact) -> Command | None:
        """A command whose contents depend on how its sequence ended is made at the end."""
        if isinstance(what, SequenceQueued | SequenceRefused):
            run = self._run
            return run.sequences[what.seq_id].submit(run.limits.block_tokens)
        if isinstance(what, KV_DECISIONS):
            return kv_command(what, self._first_token)
        return cast(Command, what)

    def _first_token(self, seq_id: int) -> int | None:
        """The first output token of a sequence; None for one whose submission was lost."""
        sequence = self._run.sequences.get(seq_id)
        return None if sequence is None else sequence.output_token(0, self._run.limits.block_tokens)

    def _add_aliases(self, seq_id: int, first: int, names: tuple[int, ...]) -> None:
        """Blocks that are computed again after a preemption are recorded again; a gap before them
        means that facts were lost, and then they are left out."""
        sequence = self._run.sequences.get(seq_id)
        if sequence is not None and first <= len(sequence.block_aliases):
            sequence.block_aliases[first : first + len(names)] = names

    def _ended(self, fact: SequenceEnded) -> None:
        sequence = self._run.sequences.get(fact.seq_id)
        if sequence is None:
            return
        sequence.end = fact
        self._add_aliases(fact.seq_id, len(sequence.block_aliases), fact.blocks)
        refused = isinstance(sequence.entry, SequenceRefused)
        if not refused and fact.reason not in _ENGINE_ENDS:
            self._commands.append((fact.at_ns, Cancel(fact.seq_id, fact.reason)))

    def _is_from_failure(self, fact: CacheFlushed) -> bool:
        """Whether a failed step flushed the cache, at its commit, and no command did."""
        return self._last_step is not None and fact.at_ns == self._last_step.committed_ns

    def _expired_between_steps(self) -> list[int]:
        """When deadlines ended sequences in iterations that launched nothing."""
        run = self._run
        planned = sorted((step.begin_ns, step.planned_ns) for step in run.steps.values())
        ends = (sequence.end for sequence in run.sequences.values())
        expired = {e.at_ns for e in ends if e is not None and e.reason is EndReason.DEADLINE}
        found: list[int] = []
        for at_ns in sorted(expired):
            place = bisect_right(planned, at_ns, key=lambda window: window[0])
            if not place or planned[place - 1][1] < at_ns:
                found.append(at_ns)
        return found
