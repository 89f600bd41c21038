"""Two engines that compute, in one process: same seed, same text as one engine, token for token, in
each KV format, with prefix hits on both sides and preemption; and a flipped bit is never text."""

from __future__ import annotations

from typing import TypeVar

import pytest
import torch

from lab.fleet.disaggregated.pair import Device, Pair
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.block_bytes import CacheBlocks
from service.device.cache.kv_cache import KvFormat, Pages, make_cache
from service.device.models.model import Decoder
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.precision import Precision
from service.device.torch_executor import TorchExecutor
from service.device.weights.dummy import DummyWeights
from service.engine.admission import Limits
from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.transfer.movers.nixl_mover import NOT_INSTALLED, is_installed
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import SequenceAdmitted, StepRecorded
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvChunkPushed,
    KvFault,
    KvLost,
    KvReserved,
    KvStagingFull,
    KvVerified,
)

F = TypeVar("F")
CPU = torch.device("cpu")
BLOCKS, CONTEXT, VOCAB = 40, 256, 512
WEIGHTS = DummyWeights("tiny")
CLOCK = MonotonicClock()
DRAWN = SamplingParams(temperature=0.9, top_p=0.95, seed=17, repetition_penalty=1.1)


class Formats:
    """A decoder for each KV format, made once, and devices with caches of their own."""

    def __init__(self, name: str) -> None:
        self.name = name
        backend, kind = name.split("-")
        self._kind = NumberKind.INT8 if kind == "int8" else NumberKind.BFLOAT16
        self._format = KvFormat.INT8 if kind == "int8" else KvFormat.PLAIN
        self._decoder: NativeDecoder | Decoder
        if backend == "native":
            number = NumberKind.BFLOAT16
            self._decoder = NativeDecoder(
                WEIGHTS, CONTEXT, number, self._kind, torch.bfloat16, threads=1
            )
        else:
            attention = TorchPagedAttention(16, CPU)
            precision = Precision(torch.float32, torch.float32)
            self._decoder = Decoder(WEIGHTS, attention, CONTEXT, precision, CPU)

    def device(self) -> Device:
        cache: Pages
        if isinstance(self._decoder, NativeDecoder):
            cache = NativeKvCache(WEIGHTS.spec, BLOCKS, self._kind)
        else:
            cache = make_cache(self._format, WEIGHTS.spec, BLOCKS, 16, torch.float32, CPU)
        executor = TorchExecutor(self._decoder, cache, CLOCK)  # type: ignore[type-var]
        return Device(executor, CacheBlocks(cache))


class Flips:
    """Memory into which one bit of the first block that comes is flipped."""

    def __init__(self, device: Device) -> None:
        self._memory = device.memory
        self.block_bytes, self.blocks = device.memory.block_bytes, device.memory.blocks
        self.flipped = 0

    def read(self, block: int) -> bytes:
        return self._memory.read(block)

    def write(self, block: int, data: bytes | memoryview) -> None:
        changed = bytearray(data)
        if not self.flipped:
            changed[len(changed) // 2] ^= 4
        self.flipped += 1
        self._memory.write(block, bytes(changed))


@pytest.fixture(scope="module", params=["native-bf16", "native-int8", "torch-plain", "torch-int8"])
def formats(request: pytest.FixtureRequest) -> Formats:
    return Formats(request.param)


@pytest.fixture(params=["in_process", "tcp", "nixl"])
def over(request: pytest.FixtureRequest, formats: Formats) -> str:
    """Each format in a process, and the narrowest over TCP and by NIXL too."""
    found: str = request.param
    if found != "in_process" and formats.name != "native-int8":
        pytest.skip("bytes are bytes: one format from process to process")
    if found == "nixl" and not is_installed():
        pytest.skip(NOT_INSTALLED)
    return found


def limits(**changed: int) -> Limits:
    fields = {"blocks_total": BLOCKS, "max_seqs": 6, "budget_tokens": 32} | changed
    return Limits(
        block_tokens=16, max_model_tokens=CONTEXT, chunked_prefill=True,
        queue_limit_requests=100, queue_limit_tokens=100_000, cache_identity="tiny", **fields,
    )  # fmt: skip


def ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, VOCAB, (count,), generator=generator).tolist()
    return found


def ask(seq_id: int, prompt: list[int], count: int = 12, **fields: int) -> Submit:
    return Submit(seq_id=seq_id, prompt=prompt, max_tokens=count, sampling=DRAWN, **fields)


def of(facts: list[object], kind: type[F]) -> list[F]:
    return [fact for fact in facts if isinstance(fact, kind)]


def pair(formats: Formats, over: str = "in_process", **changed: int) -> Pair:
    return Pair(formats.device(), formats.device(), limits(**changed), CLOCK, over)


def alone(formats: Formats, submits: list[Submit], **changed: int) -> dict[int, list[int]]:
    """What one engine says, one sequence after the other."""
    with pair(formats, **changed) as engines:
        for submit in submits:
            engines.submit(submit, remote=False)
            engines.run()
    return engines.outputs


def test_texts_are_those_of_one_engine(formats: Formats, over: str) -> None:
    """Prompts of many chunks, of one block less and more, and with prefixes that one or the other
    engine has cached."""
    shared = ids(64, 1)
    submits = [
        ask(0, ids(100, 2)),
        ask(1, ids(16, 3)),
        ask(2, ids(17, 4)),
        ask(3, shared + ids(30, 5)),
        ask(4, shared + ids(40, 6)),
    ]
    with pair(formats, over) as engines:
        engines.warm_prefill(ask(1 << 40, shared + ids(3, 7), 1))  # the prefill side has it cached
        engines.run()
        for submit in submits:
            engines.submit(submit)
            engines.run()  # one after the other: the last finds the prefix on the decode side

    assert engines.outputs == alone(formats, submits)
    facts = engines.decode.facts
    assert len(of(facts, KvAdmitted)) == len(submits)
    assert of(facts, KvReserved)[-1].hit_tokens == 64
    hits = [fact.hit_tokens for fact in of(engines.prefill.facts, SequenceAdmitted)]
    assert 64 in hits
    rows = [row for step in of(facts, StepRecorded) for row in step.rows]
    assert not any(row.is_prefill for row in rows)
    block_bytes = engines.decode.layout.block_bytes
    assert all(p.bytes == p.blocks * block_bytes for p in of(engines.prefill.facts, KvChunkPushed))
    # one for each time in which some are on their way: chunks may follow at once
    assert len(of(engines.prefill.facts, KvChunkPushed)) >= len(submits)


def test_texts_are_right_where_a_prompt_is_more_than_may_be_on_its_way(
    formats: Formats, over: str
) -> None:
    """Two such prompts at once, each computed in one chunk."""
    submits = [ask(0, ids(109, 30)), ask(1, ids(93, 31))]
    prefill, decode = formats.device(), formats.device()
    bounds, staging_bytes = limits(budget_tokens=109), 4 * prefill.memory.block_bytes
    with Pair(prefill, decode, bounds, CLOCK, over, staging_bytes) as engines:
        for submit in submits:
            engines.submit(submit)
        engines.run()

    assert engines.outputs == alone(formats, submits, budget_tokens=109)
    assert len(of(engines.decode.facts, KvAdmitted)) == len(submits)
    pushed = of(engines.prefill.facts, KvChunkPushed)
    assert sum(fact.blocks for fact in pushed) == 7 + 6
    assert len(of(engines.prefill.facts, KvStagingFull)) == len(submits)


def test_a_preempted_sequence_goes_on_with_the_same_text(formats: Formats) -> None:
    """The one whose prompt came from elsewhere is the last to have come: it computes it again."""
    here, apart = ask(0, ids(120, 10), 20), ask(1, ids(100, 11), 20)
    with pair(formats, blocks_total=16) as engines:
        engines.submit(here, remote=False)
        engines.submit(apart)
        engines.run()

    facts = engines.decode.facts
    assert [fact.seq_id for fact in of(facts, KvAdmitted)] == [1]
    assert [s for step in of(facts, StepRecorded) for s in step.preempted] == [1]
    assert engines.outputs == alone(formats, [here, apart])


def test_a_flipped_bit_is_found_and_never_text(formats: Formats, over: str) -> None:
    decode = formats.device()
    flips = Flips(decode)
    submit = ask(0, ids(90, 20))
    with Pair(formats.device(), Device(decode.executor, flips), limits(), CLOCK, over) as engines:
        engines.submit(submit)
        engines.run()

    facts = engines.decode.facts
    assert flips.flipped == 6
    assert [fact.corrupt_blocks for fact in of(facts, KvVerified)] == [1]
    assert [fact.why for fact in of(facts, KvLost)] == [KvFault.CORRUPT]
    assert not of(facts, KvAdmitted)
    assert engines.outputs == alone(formats, [submit])
    assert engines.decode.scheduler.pool.quarantined == 0


def test_a_block_is_the_same_after_it_was_read_and_written(formats: Formats) -> None:
    one, other = formats.device().memory, formats.device().memory
    content = bytes(index % 251 for index in range(one.block_bytes))
    one.write(3, content)
    other.write(7, one.read(3))

    assert other.read(7) == content
    assert other.read(6) == bytes(one.block_bytes)
    with pytest.raises(ValueError, match="bytes"):
        one.write(3, content[1:])
    with pytest.raises(IndexError):
        one.read(BLOCKS)
