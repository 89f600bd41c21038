"""The facts of a what-if replay, as an adapter in vLLM's process would have written them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from lab.vllm_replay.protocol import (
    Arrive,
    Build,
    Command,
    Committed,
    Ended,
    Flush,
    GrammarIsReady,
    Planned,
)
from lab.vllm_replay.recording import VllmRun
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import Skip

Stamps = tuple[int, int, int, int]
_BY_LENGTH = "FINISHED_LENGTH_CAPPED"
_CACHE_SIZE = "kv_cache_size_tokens"


class FactWriter:
    """Collects the facts in `written`. Steps have numbers of their own; `next_step` comes next."""

    def __init__(self, run: VllmRun, build: Build) -> None:
        self._run, self._build = run, build
        self._blocks_total = build.blocks_total - 1  # vLLM keeps one for itself
        self.written: list[Fact] = [_started(run.run.started, build)]
        self.next_step = 0
        self._compiled = {f.seq_id: f for f in run.run.facts if isinstance(f, GrammarCompiled)}
        self._outputs: dict[int, int] = {}
        self._preemptions: dict[int, int] = {}
        self._computed: dict[int, int] = {}  # before a preemption, by sequence

    def outputs(self, seq_id: int) -> int:
        """How many tokens the sequence has given."""
        return self._outputs.get(seq_id, 0)

    def told(self, at_ns: int, command: Command) -> None:
        """The scheduler was told something from outside."""
        match command:
            case Arrive():
                entry = self._run.run.sequences[command.seq_id].entry
                assert isinstance(entry, SequenceQueued), "only queued sequences come again"
                self.written.append(replace(entry, at_ns=at_ns, step_id=self.next_step))
            case GrammarIsReady():
                compiled = self._compiled.get(command.seq_id)
                if compiled is not None:
                    self.written.append(replace(compiled, at_ns=at_ns, step_id=self.next_step))
            case Flush():
                self.written.append(CacheFlushed(at_ns, self.next_step, 0))
            case _:
                pass

    def planned(self, planned: Planned, at_ns: int) -> None:
        """The next step was planned."""
        step_id = self.next_step
        self.next_step += 1
        for seq_id in planned.preempted:
            self._preemptions[seq_id] = self._preemptions.get(seq_id, 0) + 1
        for one in planned.admitted:
            self.written.append(
                SequenceAdmitted(one.seq_id, at_ns, step_id, one.known_tokens, one.hit_tokens, 0, 0)
            )

    def step(
        self,
        step_id: int,
        planned: Planned,
        committed: Committed,
        stamps: tuple[int, int, int, int],
    ) -> None:
        """A step came back. `stamps` are its begin, plan, collection and commit."""
        begin_ns, planned_ns, collected_ns, committed_ns = stamps
        rows: list[Row] = []
        for row, given in zip(planned.rows, committed.given, strict=True):
            until = row.context_tokens + row.tokens
            before = self._computed.get(row.seq_id, 0)
            again = min(until, before) - row.context_tokens if row.is_prefill else 0
            rows.append(
                Row(
                    row.seq_id,
                    row.is_prefill,
                    row.tokens,
                    row.context_tokens,
                    max(0, again),
                    given or 0,
                    given is None,
                )
            )
            self._computed[row.seq_id] = max(before, until)
            self._outputs[row.seq_id] = self.outputs(row.seq_id) + (given or 0)
        self.written.append(
            StepRecorded(
                step_id=step_id,
                begin_ns=begin_ns,
                planned_ns=planned_ns,
                launched_ns=planned_ns,
                forward_ns=planned_ns,
                sample_ns=collected_ns,
                collected_ns=collected_ns,
                committed_ns=committed_ns,
                rows=tuple(rows),
                skips=self._skips(planned),
                preempted=planned.preempted,
                budget_tokens=self._budget,
                running=planned.running,
                waiting=len(planned.waiting),
                waiting_tokens=planned.waiting_tokens,
                blocks_used=planned.blocks_used,
                blocks_cached=planned.blocks_cached,
                blocks_total=self._blocks_total,
            )
        )
        self.ended(committed_ns, committed.ended)

    def ended(self, at_ns: int, ended: Iterable[Ended]) -> None:
        """Sequences ended, in the scheduler's words."""
        for one in ended:
            recorded = self._run.run.sequences[one.seq_id].end
            reason = recorded.reason if recorded is not None else EndReason.EOS
            if one.by == _BY_LENGTH and reason is not EndReason.CONTEXT:
                reason = EndReason.MAX_TOKENS
            self.written.append(
                SequenceEnded(
                    one.seq_id,
                    at_ns,
                    self.next_step,
                    reason,
                    one.output_tokens,
                    self._preemptions.get(one.seq_id, 0),
                )
            )

    def idled(self, at_ns: int) -> None:
        """Nothing is left to do until something comes."""
        self.written.append(EngineIdled(at_ns, 0, 0, 0, 0, self._blocks_total))

    @property
    def _budget(self) -> int:
        scheduled = self._build.values.get("max_num_scheduled_tokens")
        found = scheduled if scheduled is not None else self._build.values["max_num_batched_tokens"]
        assert isinstance(found, int), "a number of tokens"
        return found

    def _skips(self, planned: Planned) -> tuple[Skip, ...]:
        """Running sequences without a row, and the head of the queue."""
        is_full = sum(row.tokens for row in planned.rows) >= self._budget
        short = WaitReason.BUDGET if is_full else WaitReason.KV
        found = [
            Skip(seq_id, short, None) for seq_id in planned.idle if is_full or planned.preempted
        ]
        if planned.waiting:
            at_limit = planned.running >= int(self._build.values["max_num_seqs"] or 0)
            head = planned.waiting[0]
            reason = WaitReason.SEQS if at_limit else short
            if reason is WaitReason.KV and head in self._preemptions:
                reason = WaitReason.PREEMPTED
            found.append(Skip(head, reason, None))
        return tuple(found)


def _started(started: EngineStarted, build: Build) -> EngineStarted:
    """The start with the limits of the replay."""
    values = build.values
    told = {name: str(value) for name, value in values.items() if value is not None}
    told["num_gpu_blocks"] = str(build.blocks_total)
    cache_tokens = started.settings.get(_CACHE_SIZE, "")
    if cache_tokens.isdecimal() and len(cache_tokens) < 20:  # as much larger as the pool
        share = build.blocks_total / (started.blocks_total + 1)
        told[_CACHE_SIZE] = str(round(int(cache_tokens) * share))
    return replace(
        started,
        blocks_total=build.blocks_total - 1,
        max_seqs=int(values["max_num_seqs"] or 0),
        budget_tokens=int(values["max_num_batched_tokens"] or 0),
        chunked_prefill=bool(values["enable_chunked_prefill"]),
        prefix_cache=bool(values["enable_prefix_caching"]),
        policy=str(values.get("policy", "fcfs")),
        settings={**started.settings, **told},
    )
