"""What the engine process pays for telemetry on the device's own steps, and how busy it keeps the
device meanwhile.

Recording off against recording on, in one process, on the same weights and captured graphs: short
blocks of decodes of one batch in the order ABBA or BAAB. Each four have sequences of their own,
and a block before them that does not count, so that both states see the same contexts.
The control is off against off, switching included.

On: the record of each step is built, put into the lane, drained, encoded into the frame that
carries the tokens and sent over the socket, as `EngineServer` does. In both: stamps, marks in the
device's stream, frames with tokens, and the few facts of a request. Not here: what the gateway does
with a record (folds, spans, exporters, scrapes), in a process and on cores of its own;
`benchmarks.overhead` measures a whole server.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np

from benchmarks.gpu.abba import CONTROL, OFF, ON, median_costs
from benchmarks.gpu.engine import submits
from benchmarks.gpu.hosted import Hosted, Metered, Played, Script
from benchmarks.gpu.workload import SequenceSpec
from benchmarks.paired import Block, Pair, pairs_of, quad_order
from service.engine.admission import Limits
from service.engine.executor import Executor
from service.engine.inbox import Cancel, SetRecording
from service.process.frames import ToEngine
from telemetry.facts.reasons import EndReason

_BLOCKS = 5  # of one set of sequences, the first uncounted
_SPARE_TOKENS = 64  # while others' prompts are computed

Turns = Generator[list[ToEngine], None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`batch` sequences of `context` tokens, decoded in blocks of `steps`; so many pairs of blocks,
    and as many of the control."""

    batch: int
    context: int
    steps: int
    pairs: int


class Abba:
    """One load, played once."""

    def __init__(self, executor: Executor, limits: Limits, vocab: int, load: Load) -> None:
        self._load, self._vocab = load, vocab
        self._metered = Metered(executor)
        self._hosted = Hosted(self._metered, limits)
        self._submitted = 0
        self._pairs: dict[str, list[Pair]] = {CONTROL: [], ON: []}
        self._busy: dict[str, list[float]] = {OFF: [], CONTROL: [], ON: []}

    def measure(self) -> dict[str, Any]:
        self._hosted.play(self._script)
        costs = {kind: median_costs(pairs) for kind, pairs in self._pairs.items()}
        compared = self._pairs[ON]
        return {
            **asdict(self._load),
            "cost_percent": {
                kind: {name: cost.as_dict() for name, cost in found.items()}
                for kind, found in costs.items()
            },
            "tokens_per_s": {
                OFF: statistics.median(base.tokens_per_s for base, _ in compared),
                ON: statistics.median(other.tokens_per_s for _, other in compared),
            },
            "device_busy": {
                state: statistics.median(shares) if any(shares) else None
                for state, shares in self._busy.items()
            },
        }

    def _script(self, gateway: Played) -> Script:
        for number in range(-(-self._load.pairs // 2)):
            for other in (CONTROL, ON):
                yield from self._quad(gateway, number, other)

    def _quad(self, gateway: Played, number: int, other: str) -> Turns:
        load, first_id = self._load, self._submitted
        self._submitted += load.batch
        yield list(submits(self._asked(first_id), first_id))
        while not gateway.emitted or gateway.emitted[-1] < load.batch:
            yield []
        yield from self._block(gateway, OFF)
        blocks = list[Block]()
        for state in quad_order(OFF, other, number):
            block = yield from self._block(gateway, state)
            blocks.append(block)
        self._pairs[other] += pairs_of(blocks, number)
        yield [Cancel(first_id + row, EndReason.DISCONNECT) for row in range(load.batch)]
        while self._hosted.loop.has_work:
            yield []
        gateway.stamps_ns.clear()
        gateway.emitted.clear()

    def _block(self, gateway: Played, state: str) -> Generator[list[ToEngine], None, Block]:
        """Begins and ends where a step was sent; the one in which it is switched is not counted."""
        yield [SetRecording(state == ON)]
        begin, busy_ns = len(gateway.stamps_ns) - 1, self._metered.busy_ns
        for _ in range(self._load.steps):
            yield []
        stamps_ns = np.array(gateway.stamps_ns[begin:], dtype=np.float64)
        assert len(stamps_ns) == self._load.steps + 1, (len(stamps_ns), self._load)
        wall_ns = float(stamps_ns[-1] - stamps_ns[0])
        self._busy[state].append((self._metered.busy_ns - busy_ns) / wall_ns)
        tokens = self._load.batch * self._load.steps
        return Block(state, tokens / wall_ns * 1e9, np.diff(stamps_ns) / 1e6)

    def _asked(self, seed: int) -> list[SequenceSpec]:
        """Sequences with prompts that no other four blocks have had."""
        load, draw = self._load, Random(seed)
        output_tokens = _BLOCKS * (load.steps + 1) + _SPARE_TOKENS
        return [
            SequenceSpec([draw.randrange(self._vocab) for _ in range(load.context)], output_tokens)
            for _ in range(load.batch)
        ]
