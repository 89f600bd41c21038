"""What-if replay: the production loop over recorded arrivals with fitted durations, and changes.

Arrivals come at the gateway's recorded stamps, however late they are served (open loop); outputs
have their recorded lengths. Cancels, pauses and grammars keep their times, but a stop string ends
its sequence after the recorded number of tokens. The result is facts, with the gateway's shifted
to the tokens that they follow, so that every fold and view works on it as on a recorded run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from lab.replay.iteration_cost import IterationCost
from lab.replay.modelled_device import ModelledDevice
from lab.replay.noise import Noise, NoNoise
from lab.replay.recorded import END_TOKEN, NotReplayable, RecordedRun, RecordedSequence
from lab.replay.recorded_adapters import ModelledAdapters
from lab.replay.recorded_drafts import RecordedDrafts, accepted_of, drafts_of
from lab.replay.retimed import retimed
from lab.simulation.virtual_engine import VirtualEngine
from service.engine.admission import Limits
from service.engine.inbox import (
    Cancel,
    Command,
    FlushCache,
    GrammarReady,
    LoadAdapter,
    Pause,
    Resume,
    SetLimits,
    SetStepCost,
    Submit,
    UnloadAdapter,
)
from service.engine.limits_record import record_of, runtime_of, with_runtime
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineStarted, SequenceQueued
from telemetry.facts.limits import changed_names
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact

_BY_TOKEN = frozenset({EndReason.EOS, EndReason.STOP_TOKEN, EndReason.STOP_STRING})
# ends that come out of the replay itself
_DECIDED = _BY_TOKEN | {
    EndReason.MAX_TOKENS,
    EndReason.CONTEXT,
    EndReason.DEADLINE,
    EndReason.GRAMMAR_INVALID,
    EndReason.ADAPTER_FAILED,
    EndReason.ADAPTER_UNLOADED,
    EndReason.QUEUE_FULL,
    EndReason.TENANT_LIMIT,
    EndReason.TTFT_UNREACHABLE,
    EndReason.INVALID,
    EndReason.INVALID_TOKEN,
}


ALWAYS_NS = -(2**63)  # the commands of an excerpt's begin are before 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a replay changes; nothing by default.

    `limits` replace those of the engine's start. Recorded changes of limits are made again, except
    of those that `limits` has other values for, and from `pinned_from_ns` on of the fields in
    `pinned`, which stay what they are then. `without` are
    sequences that do not arrive. `pauses` false drops pauses of slow readers, `flushes` false drops
    flushes of the prefix cache. `prompts` and `outputs` cap the tokens of sequences, `prefixes` are
    aliases of the blocks with which their prompts begin instead. `cancels` are pairs of time and
    sequence. `noise` is added to the cost
    of steps.
    """

    limits: Limits | None = None
    pinned: frozenset[str] = frozenset()
    pinned_from_ns: int = ALWAYS_NS
    without: frozenset[int] = frozenset()
    pauses: bool = True
    flushes: bool = True
    prompts: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    prefixes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    cancels: tuple[tuple[int, int], ...] = ()
    noise: Noise = field(default_factory=NoNoise)


def replay_modelled(
    run: RecordedRun, cost: IterationCost, change: Change | None = None
) -> list[Fact]:
    """Facts of the replayed run, in order of time.

    Raises AssertionError when limits cannot hold the longest request, LimitError when a recorded
    change of limits is not possible with them, NotReplayable where KV came from or went to another
    engine, of which this one's record says too little.
    """
    change = change or Change()
    entries = [sequence.entry for sequence in run.sequences.values()]
    if any(isinstance(e, SequenceQueued) and (e.receives_kv or e.sends_kv) for e in entries):
        raise NotReplayable("prompts were computed for or by another engine: replay exactly only")
    facts = _Modelled(run, cost, change).run()
    return retimed(run, facts, change.without)


def check_limits(run: RecordedRun, change: Change) -> None:
    """Raises LimitError when a recorded change of limits is not possible with those of `change`."""
    set_again = _SetAgain(run, change)
    for iteration in run.iterations:
        for command in iteration.commands:
            if isinstance(command, SetLimits):
                set_again.of(iteration.at_ns, command)


class _Modelled:
    """Runs the engine in virtual time."""

    def __init__(self, run: RecordedRun, cost: IterationCost, change: Change) -> None:
        self._run_recorded = run
        self._limits = limits = change.limits or run.limits
        self._drafts = drafts_of(run)
        clock = ManualClock(run.started.at_ns)
        device = ModelledDevice(limits, cost, change.noise, clock, self._token, accepted_of(run))
        scheduler = Scheduler(limits, self._proposer)
        adapters = ModelledAdapters(run.adapters, clock)
        self._engine = VirtualEngine(
            scheduler, device, clock, lambda: device.gap_ns, run.depth, adapters
        )
        adapters.send_at = self._engine.send_at
        for at_ns, command in _commands(run, cost, change):
            self._engine.send_at(at_ns, command)

    def run(self) -> list[Fact]:
        """Facts until no work is left, or the engine's recorded death."""
        run = self._run_recorded
        return [_started(run, self._limits), *self._engine.run(until_ns=run.died_ns)]

    def _proposer(self, submit: Submit) -> RecordedDrafts:
        return RecordedDrafts(self._drafts.get(submit.seq_id, {}), len(submit.prompt))

    def _token(self, seq_id: int, index: int) -> int:
        run = self._run_recorded
        sequence = run.sequences[seq_id]
        end = sequence.end
        if end is not None and end.reason in _BY_TOKEN and index >= end.output_tokens - 1:
            return END_TOKEN
        return sequence.token(sequence.entry.prompt_tokens + index, run.limits.block_tokens)


def _commands(
    run: RecordedRun, cost: IterationCost, change: Change
) -> Iterable[tuple[int, Command]]:
    """Commands of the replay, with their times."""
    for sequence in run.sequences.values():
        if sequence.seq_id in change.without:
            continue
        submitted_ns = sequence.submitted_ns
        arrived_ns = sequence.entry.at_ns
        if submitted_ns is not None:
            arrived_ns = min(arrived_ns, submitted_ns + cost.wake_ns)
        yield arrived_ns, _submit(run, sequence, change)
        end = sequence.end
        if end is not None and end.reason not in _DECIDED:
            yield end.at_ns, Cancel(sequence.seq_id, end.reason)
    for at_ns, seq_id in change.cancels:
        yield at_ns, Cancel(seq_id, EndReason.DISCONNECT)
    set_again = _SetAgain(run, change)
    for iteration in run.iterations:
        for command in iteration.commands:
            match command:
                case SetLimits():
                    at_ns = iteration.at_ns
                    yield from ((at_ns, again) for again in set_again.of(at_ns, command))
                case Pause() | Resume():
                    if change.pauses and command.seq_id not in change.without:
                        yield iteration.at_ns, command
                case GrammarReady():
                    if command.seq_id not in change.without:
                        yield iteration.at_ns, command
                case FlushCache() if not change.flushes:
                    pass
                case FlushCache() | SetStepCost() | LoadAdapter() | UnloadAdapter():
                    yield iteration.at_ns, command
                case _:
                    pass


class _SetAgain:
    """Recorded changes of limits, without what the replay's own change decides."""

    def __init__(self, run: RecordedRun, change: Change) -> None:
        self._start = change.limits or run.limits
        self._in_force = runtime_of(self._start)
        recorded = runtime_of(run.limits)
        self._changed = {
            name
            for name in recorded.__struct_fields__
            if getattr(recorded, name) != getattr(self._in_force, name)
        }
        self._pinned = self._changed | (change.pinned & set(recorded.__struct_fields__))
        self._pinned_from_ns = change.pinned_from_ns

    def of(self, at_ns: int, command: SetLimits) -> list[SetLimits]:
        """The command, or nothing where it changes nothing else. Raises LimitError."""
        stay = self._pinned if at_ns >= self._pinned_from_ns else self._changed
        wanted = replace(command.limits, **{name: getattr(self._in_force, name) for name in stay})
        changed = changed_names(self._in_force, wanted)
        if not changed:
            return []
        with_runtime(self._start, wanted)
        self._in_force = wanted
        return [replace(command, limits=wanted, changed=changed)]


def _submit(run: RecordedRun, sequence: RecordedSequence, change: Change) -> Submit:
    seq_id, size = sequence.seq_id, run.limits.block_tokens
    submit = sequence.submit(size)
    begin = [name for name in change.prefixes.get(seq_id, ()) for _ in range(size)]
    prompt = [*begin, *submit.prompt[len(begin) :]][: len(submit.prompt)]
    output = change.outputs.get(seq_id, submit.max_tokens)
    return replace(
        submit,
        prompt=prompt[: change.prompts.get(seq_id, len(prompt))],
        max_tokens=min(output, submit.max_tokens),
    )


def _started(run: RecordedRun, limits: Limits) -> EngineStarted:
    return replace(run.started, **record_of(limits))
