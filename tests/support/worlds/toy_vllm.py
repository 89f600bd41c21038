"""A small scheduler behind the messages of `lab.vllm_replay`, and runs of it.

First come, first served; a token budget; blocks that all come back; the last running sequence is
preempted. Enough to try what drives a scheduler without vLLM.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from lab.replay.iteration_cost import IterationCost
from lab.vllm_replay.protocol import (
    Admission,
    Arrive,
    Build,
    Built,
    Command,
    Commit,
    Committed,
    Done,
    Ended,
    Finish,
    Flush,
    GrammarIsReady,
    Plan,
    Planned,
    PlannedRow,
    Reply,
)
from telemetry.costs.cost_model import REPLAY
from telemetry.costs.step_load import StepLoad
from telemetry.facts.engine_records import (
    EngineStarted,
    GrammarCompiled,
    SequenceEnded,
    SequenceQueued,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, fact_ns

BLOCK_TOKENS = 16


@dataclass(eq=False)
class _Sequence:
    arrive: Arrive
    is_ready: bool
    computed: int = 0
    outputs: int = 0  # known to the scheduler
    flying: int = 0  # tokens that are computed and not known yet
    prompt_until: int = 0

    @property
    def known(self) -> int:
        return self.arrive.prompt_tokens + self.outputs


@dataclass
class ToyScheduler:
    """Implements `lab.vllm_replay.protocol.ForeignScheduler`."""

    queue: deque[_Sequence] = field(default_factory=deque)
    running: list[_Sequence] = field(default_factory=list)
    by_id: dict[int, _Sequence] = field(default_factory=dict)
    cached: set[int] = field(default_factory=set)
    steps: dict[int, list[tuple[_Sequence, PlannedRow]]] = field(default_factory=dict)
    builds: list[Build] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)  # with rows

    @property
    def has_requests(self) -> bool:
        return bool(self.by_id)

    def do(self, *commands: Command) -> list[Reply]:
        return [self._do(command) for command in commands]

    def _do(self, command: Command) -> Reply:
        match command:
            case Build():
                self.__init__(builds=[*self.builds, command])  # type: ignore[misc]
                return Built("0.32.0", "toy", command.blocks_total - 1)
            case Arrive():
                one = _Sequence(command, not command.waits_for_grammar)
                self.by_id[command.seq_id] = one
                self.queue.append(one)
            case GrammarIsReady(seq_id):
                if seq_id in self.by_id:
                    self.by_id[seq_id].is_ready = True
            case Finish(seq_id):
                found = self.by_id.pop(seq_id, None)
                if found is not None:
                    self._leave(found)
                    return Done((Ended(seq_id, "FINISHED_ABORTED", found.outputs),))
            case Flush():
                self.cached.clear()
            case Plan():
                return self._plan(command.number)
            case Commit():
                return self._commit(command.number)
        return Done()

    def _leave(self, one: _Sequence) -> None:
        if one in self.running:
            self.running.remove(one)
        else:
            self.queue.remove(one)

    def _value(self, name: str) -> int:
        value = self.builds[-1].values[name]
        assert isinstance(value, int)
        return value

    @property
    def _free(self) -> int:
        held = sum(-(-one.computed // BLOCK_TOKENS) for one in self.running)
        return self.builds[-1].blocks_total - 1 - held

    def _plan(self, number: int) -> Planned:
        left, rows = self._value("max_num_batched_tokens"), list[tuple[_Sequence, PlannedRow]]()
        preempted: list[int] = []
        admitted: list[Admission] = []
        for one in list(self.running):
            while one in self.running and self._free < 1:
                last = self.running.pop()
                last.computed, last.flying = 0, 0
                self.queue.appendleft(last)
                preempted.append(last.arrive.seq_id)
            if one in self.running:
                left -= self._row(one, left, rows)
        while left and self.queue and not preempted:
            one = self.queue[0]
            if len(self.running) >= self._value("max_num_seqs") or not one.is_ready:
                break
            if self._free < -(-one.known // BLOCK_TOKENS) + 1:
                break
            self.running.append(self.queue.popleft())
            one.computed, one.prompt_until = self._hit(one), one.known
            admitted.append(Admission(one.arrive.seq_id, one.known, one.computed))
            left -= self._row(one, left, rows)
        if rows:
            self.steps[number] = rows
        with_rows = {row.seq_id for _, row in rows}
        found = Planned(
            rows=tuple(row for _, row in rows),
            admitted=tuple(admitted),
            preempted=tuple(preempted),
            running=len(self.running),
            idle=tuple(r.arrive.seq_id for r in self.running if r.arrive.seq_id not in with_rows),
            waiting=tuple(one.arrive.seq_id for one in self.queue),
            waiting_tokens=sum(one.known for one in self.queue),
            blocks_used=self.builds[-1].blocks_total - 1 - self._free,
            blocks_cached=len(self.cached),
        )
        self.planned += [found] if rows else []
        return found

    def _row(self, one: _Sequence, left: int, rows: list[tuple[_Sequence, PlannedRow]]) -> int:
        tokens = min(left, one.known + one.flying - one.computed)
        if tokens < 1 or one.outputs + one.flying >= one.arrive.max_tokens:
            return 0
        context, one.computed = one.computed, one.computed + tokens
        gives = one.computed >= one.known + one.flying
        one.flying += gives
        is_prompt = context < one.prompt_until
        row = PlannedRow(one.arrive.seq_id, is_prompt, tokens, context, one.known, gives)
        rows.append((one, row))
        return tokens

    def _hit(self, one: _Sequence) -> int:
        hit = 0
        for alias in (one.arrive.aliases or ())[: (one.known - 1) // BLOCK_TOKENS]:
            if not self._value("enable_prefix_caching") or alias not in self.cached:
                break
            hit += BLOCK_TOKENS
        return hit

    def _commit(self, number: int) -> Committed:
        given: list[int | None] = []
        ended: list[Ended] = []
        for one, row in self.steps.pop(number, ()):
            if self.by_id.get(row.seq_id) is not one:
                given.append(None)
                continue
            given.append(int(row.gives))
            if not row.gives:
                continue
            one.outputs, one.flying = one.outputs + 1, max(0, one.flying - 1)
            self.cached.update((one.arrive.aliases or ())[: one.computed // BLOCK_TOKENS])
            stops = one.outputs == one.arrive.end_output
            if stops or one.outputs >= one.arrive.max_tokens:
                by = "FINISHED_STOPPED" if stops else "FINISHED_LENGTH_CAPPED"
                ended.append(Ended(row.seq_id, by, one.outputs))
                del self.by_id[row.seq_id]
                self._leave(one)
        return Committed(tuple(given), tuple(ended))


def flat_cost(base_ns: int = 5_000_000, prompt_token_ns: int = 100_000) -> IterationCost:
    """So much for a step, and so much for each token of a prompt in it."""
    coefficients = [0.0] * len(REPLAY.columns(StepLoad(), ()))
    coefficients[0], coefficients[1] = base_ns, prompt_token_ns
    return IterationCost(
        coefficients=tuple(coefficients), knots=(), factors={}, gap_ns=200_000, wake_ns=0,
        iterations=0, mean_error=0.0, disturbances=(),
    )  # fmt: skip


def started(blocks: int = 70, /, **settings: str) -> EngineStarted:
    return EngineStarted(
        at_ns=1_000, pid=1, model="m", backend="vllm-cpu", dtype="bfloat16",
        blocks_total=blocks - 1, block_tokens=BLOCK_TOKENS, max_model_tokens=1024, max_seqs=8,
        budget_tokens=128, chunked_prefill=True, pipeline_depth=2,
        queue_limit_requests=2**31 - 1, queue_limit_tokens=2**31 - 1, engine="vllm",
        engine_version="0.32.0", settings={"num_gpu_blocks": str(blocks), **settings},
    )  # fmt: skip


def asked(count: int = 60, seed: int = 1, rate_per_s: float = 12.0) -> list[Fact]:
    """Sequences that come to an engine, and how each is to end: by length, by an end token, or by
    an abort at some time. Some share the beginning of their prompts, some wait for a grammar."""
    draw, facts, at_ns = Random(seed), list[Fact]([started()]), 10_000_000
    for seq_id in range(count):
        at_ns += int(draw.expovariate(rate_per_s) * 1e9)
        prompt, output = draw.randrange(10, 400), draw.randrange(1, 60)
        shared = draw.choice((0, 0, 4))
        own = range(1000 * (seq_id + 1), 1000 * (seq_id + 1) + prompt // BLOCK_TOKENS)
        blocks = (*range(shared), *own)[: prompt // BLOCK_TOKENS]
        constrained, leaves = seq_id % 9 == 4, seq_id % 10 == 7
        most = output + 400 * leaves + 20 * (seq_id % 3 == 0)
        facts.append(
            SequenceQueued(
                seq_id, at_ns, 0, prompt, most, "default",
                constrained=constrained, blocks=blocks, received_ns=at_ns,
            )
        )  # fmt: skip
        if constrained:
            ready_ns = at_ns + draw.randrange(200_000_000)
            facts.append(GrammarCompiled(seq_id, ready_ns, 0, 1_000, False, False))
        reason = EndReason.EOS if seq_id % 3 == 0 else EndReason.MAX_TOKENS
        end_ns = 10**13
        if leaves:
            reason, end_ns = EndReason.DISCONNECT, at_ns + draw.randrange(1_000_000_000)
        facts.append(SequenceEnded(seq_id, end_ns, 0, reason, output, 0))
    return sorted(facts, key=fact_ns)
