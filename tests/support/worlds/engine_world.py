"""The production loop on a simulated device, small enough to read in a test."""

from __future__ import annotations

from collections import defaultdict

from lab.simulation.sim_executor import Cell, LinearCost, SimExecutor
from service.engine.adapters.orders import AdapterDevice
from service.engine.admission import Limits
from service.engine.inbox import Cancel, Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.prompt_output import PromptResult
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import SequenceEnded, StepRecorded
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact


class World:
    """One engine with everything that came out of it."""

    def __init__(
        self,
        blocks_total: int = 64,
        block_tokens: int = 4,
        max_model_tokens: int = 64,
        max_seqs: int = 8,
        budget_tokens: int = 16,
        chunked_prefill: bool = True,
        queue_limit_requests: int = 100,
        queue_limit_tokens: int = 100_000,
        depth: int = 1,
        cost: LinearCost | None = None,
        fail_steps: frozenset[int] = frozenset(),
        score_row_ns: int = 0,
        adapters: AdapterDevice | None = None,
        **limits: object,
    ) -> None:
        self.clock = ManualClock()
        self.limits = Limits(
            block_tokens=block_tokens,
            blocks_total=blocks_total,
            max_model_tokens=max_model_tokens,
            max_seqs=max_seqs,
            budget_tokens=budget_tokens,
            chunked_prefill=chunked_prefill,
            queue_limit_requests=queue_limit_requests,
            queue_limit_tokens=queue_limit_tokens,
            **limits,  # type: ignore[arg-type]
        )
        self.scheduler = Scheduler(self.limits)
        self.inbox = Inbox()
        self.lane = Lane()
        self.depth = depth
        self._executor = SimExecutor(
            self.clock,
            blocks_total,
            block_tokens,
            cost=cost,
            fails=lambda plan: plan.step_id in fail_steps,
            score_row_ns=score_row_ns,
        )
        self.loop = EngineLoop(
            self.scheduler,
            self._executor,
            self.inbox,
            self.lane,
            self.clock,
            depth=depth,
            adapters=adapters,
        )
        self.outputs: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, list[EndReason]] = defaultdict(list)
        self.details: dict[int, str | None] = {}
        self.read: dict[int, list[PromptResult]] = defaultdict(list)
        self.facts: list[Fact] = []
        self._next_seq_id = 0

    def submit(
        self,
        prompt_tokens: int,
        max_tokens: int = 8,
        given: list[int] | None = None,
        **fields: object,
    ) -> int:
        """Queue a sequence; its prompt is its own unless it is `given`."""
        seq_id = self._next_seq_id
        self._next_seq_id += 1
        self.inbox.put(
            Submit(
                seq_id=seq_id,
                prompt=given or [(seq_id * 31 + i) % 997 for i in range(prompt_tokens)],
                max_tokens=max_tokens,
                sampling=SamplingParams(temperature=0.0),
                **fields,  # type: ignore[arg-type]
            )
        )
        return seq_id

    def true_token(self, seq_id: int, output_index: int) -> int:
        return self._executor.token(seq_id, output_index)

    def write(self, block: int, seq_id: int, tokens: list[int]) -> None:
        """Another engine writes a block: the KV of `tokens`, and nothing after it."""
        rest = self.limits.block_tokens - len(tokens)
        self._executor.write_block(block, [*(Cell(t, seq_id) for t in tokens), *[None] * rest])

    def cancel(self, seq_id: int, reason: EndReason = EndReason.DISCONNECT) -> None:
        self.inbox.put(Cancel(seq_id, reason))

    def step(self) -> None:
        for emission in self.loop.step():
            assert not self.ends[emission.seq_id], "news of a sequence after its end"
            if emission.sample is not None:
                self.outputs[emission.seq_id].append(emission.sample.token_id)
            if emission.prompt is not None:
                self.read[emission.seq_id].append(emission.prompt)
            if emission.end is not None:
                self.ends[emission.seq_id].append(emission.end)
                self.details[emission.seq_id] = emission.detail
        self.facts += self.lane.drain()
        self.scheduler.check()

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left to do."""
        self.step()
        for _ in range(limit):
            if not self.loop.has_work:
                return
            self.step()
        raise AssertionError(f"still {self.scheduler.running} running after {limit} steps")

    @property
    def steps(self) -> list[StepRecorded]:
        return [fact for fact in self.facts if isinstance(fact, StepRecorded)]

    @property
    def terminal_facts(self) -> dict[int, list[SequenceEnded]]:
        found: dict[int, list[SequenceEnded]] = defaultdict(list)
        for fact in self.facts:
            if isinstance(fact, SequenceEnded):
                found[fact.seq_id].append(fact)
        return found
