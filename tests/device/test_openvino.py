"""The OpenVINO forward pass gives what transformers and our torch decoder give."""

from __future__ import annotations

import functools
import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import KvFormat, PlainKvCache
from service.device.inputs import SequenceSpan, StepInputs
from service.device.loader import load_executor
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.openvino.cache import OpenVinoKvCache
from service.device.openvino.decoder import (
    PAGE_TOKENS,
    OpenVinoDecoder,
    OpenVinoSettings,
    build_openvino,
)
from service.device.openvino.graph import WeightStorage
from service.device.openvino.runtime import tile_rows
from service.device.quantization.matrix_format import Int8Format
from service.device.quantization.precision import Precision, cpu_multiplies_bf16
from service.device.spec import DUMMY_SHAPES, ModelSpec
from service.device.torch_executor import TorchExecutor
from service.device.weights.dummy import DummyWeights
from service.device.weights.source import open_weights
from service.process.engine_limits import limits_of
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock
from tests.models.test_parity_families import chunk, some_ids
from tests.support.models.openvino_world import (
    CPU,
    EXACT,
    PAGES,
    Pair,
    Side,
    close,
    decode,
    openvino_side,
    torch_side,
)
from tests.support.models.parity import Built, Engine
from tests.support.models.tiny_families import FAMILIES

pytestmark = pytest.mark.long

LICENSE = Path(__file__).parents[2] / "LICENSE"
WINDOWS_AND_YARN = ("mistral-window", "qwen2-window", "qwen3-yarn")


@pytest.fixture(scope="module", params=[*FAMILIES, *WINDOWS_AND_YARN])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    transformers.logging.set_verbosity_error()
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


def test_prefill_whole_and_in_chunks_then_decode(pair: Pair) -> None:
    """Seven pages in no order; chunk borders inside pages and on their borders."""
    ids = some_ids(201, seed=1)
    blocks = [9, 3, 17, 1, 30, 12, 5]
    (whole,) = pair.ours.step([], [chunk(ids, 0, 200, blocks, samples=True)], [])
    close(whole, pair.reference(ids[:200]))

    other = [4, 22, 6, 11, 2, 31, 0]
    for start, count in ((0, 32), (32, 45), (77, 1), (78, 90)):
        nothing = pair.ours.step([], [chunk(ids, start, count, other, samples=False)], [])
        assert nothing.shape == (0, 211)
    (chunked,) = pair.ours.step([], [chunk(ids, 168, 32, other, samples=True)], [])
    close(chunked, pair.reference(ids[:200]))

    (decoded,) = pair.ours.step([decode(0, 200, other)], [], [ids[200]])
    close(decoded, pair.reference(ids))


def test_a_mixed_batch_of_decodes_and_a_chunk(pair: Pair) -> None:
    """Decode rows of very different lengths beside a prefill chunk, in one step."""
    texts = [some_ids(count, seed=count) for count in (3, 33, 130)]
    tables = [[5], [7, 8], [10, 12, 14, 16, 13]]
    for ids, blocks in zip(texts, tables, strict=True):
        pair.ours.step([], [chunk(ids, 0, len(ids) - 1, blocks, samples=True)], [])
    fresh = some_ids(45, seed=9)
    rows = [decode(i, len(ids) - 1, tables[i]) for i, ids in enumerate(texts)]
    last = [ids[-1] for ids in texts]
    logits = pair.ours.step(rows, [chunk(fresh, 0, 45, [20, 21], samples=True)], last)

    for row, ids in enumerate([*texts, fresh]):
        close(logits[row], pair.reference(ids))


def random_traffic(rng: random.Random, sides: list[Side], vocab: int, steps: int) -> None:
    """Sequences over random pages, each step a random mixture of decode rows with and without
    drafts and chunks that sample or do not; all sides must agree in every sampled row."""
    pages = rng.sample(range(PAGES), PAGES)
    texts = [[rng.randrange(vocab) for _ in range(190)] for _ in range(5)]
    tables = [pages[6 * i : 6 * i + 6] for i in range(5)]
    done = [0] * 5
    for _ in range(steps):
        rows, chunks, last = [], [], []
        for i in rng.sample(range(5), rng.randint(1, 5)):
            left = len(texts[i]) - done[i]
            if left == 0:
                continue
            if done[i] and rng.random() < 0.5:
                drafts = texts[i][done[i] + 1 : done[i] + 1 + rng.choice([0, 0, 1, 3])]
                rows.append(decode(i, done[i], tables[i], drafts))
                last.append(texts[i][done[i]])
                done[i] += 1 + len(drafts)
            else:
                count = min(left, rng.choice([1, 5, 32, 60]))
                chunks.append(chunk(texts[i], done[i], count, tables[i], rng.random() < 0.7))
                done[i] += count
        if rows or chunks:
            first, *others = [side.step(rows, chunks, last) for side in sides]
            for other in others:
                close(first, other)


def test_random_steps_agree_with_the_torch_decoder(pair: Pair) -> None:
    """Whatever is mixed in a step, over pages in any order."""
    random_traffic(random.Random(2), [pair.ours, torch_side(pair.source)], 211, steps=12)


@pytest.mark.parametrize("name", ["llama-tied", "qwen2"])
def test_int8_weights_are_the_torch_decoders_int8_weights(name: str, tmp_path: Path) -> None:
    """The same codes and scales, and float activations: no tolerance beyond floats'."""
    source = Pair(name, tmp_path).source
    ours = openvino_side(
        source,
        OpenVinoSettings(rounding=torch.float32, weight_storage=WeightStorage.INT8, threads=1),
    )
    theirs = torch_side(source, Int8Format(torch.float32, "a test"))
    random_traffic(random.Random(7), [ours, theirs], 211, steps=12)


TINY = DUMMY_SHAPES["tiny"]


@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_blocks_copied_to_host_and_back_give_the_same_bits(kv_format: KvFormat) -> None:
    """Into other blocks, in either format: the runtime reads what the tier wrote."""
    settings = OpenVinoSettings(rounding=torch.float32, kv_format=kv_format, threads=1)
    side = openvino_side(DummyWeights("tiny"), settings)
    tier = CpuKvPool(side.cache, 4)
    ids = some_ids(71, seed=3)
    side.step([], [chunk(ids, 0, 70, [3, 9, 4], samples=True)], [])
    for slot, block in enumerate((3, 9, 4)):
        tier.save(block, slot)
    (stayed,) = side.step([decode(0, 70, [3, 9, 4])], [], [ids[70]])
    for slot, block in enumerate((20, 0, 11)):
        tier.load(slot, block)

    (moved,) = side.step([decode(0, 70, [20, 0, 11])], [], [ids[70]])
    assert torch.equal(stayed, moved)


@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_a_page_costs_what_the_layout_says(kv_format: KvFormat) -> None:
    """The arithmetic that the block count rests on."""
    settings = OpenVinoSettings(rounding=torch.float32, kv_format=kv_format, threads=1)
    decoder = build_openvino(DummyWeights("tiny"), 64, settings)
    cache = decoder.make_cache(7)

    held = sum(whole.numel() * whole.itemsize for whole in cache.storage)
    assert held == 7 * decoder.layout.page_bytes
    assert cache.page_tokens == PAGE_TOKENS
    if kv_format is KvFormat.PLAIN:
        assert decoder.layout.page_bytes == 2 * TINY.layers * PAGE_TOKENS * TINY.kv_size * 4


def test_a_decoder_follows_the_cache_that_it_is_given() -> None:
    """Two caches in turn do not see each other's keys."""
    decoder = build_openvino(DummyWeights("tiny"), 64, EXACT)
    one, two = (Side(decoder, decoder.make_cache(4)) for _ in range(2))
    ids, others = some_ids(20, seed=1), some_ids(20, seed=2)
    one.step([], [chunk(ids, 0, 19, [2], samples=True)], [])
    (alone,) = one.step([decode(0, 19, [2])], [], [ids[19]])
    two.step([], [chunk(others, 0, 19, [2], samples=True)], [])

    (again,) = one.step([decode(0, 19, [2])], [], [ids[19]])
    assert torch.equal(alone, again)


def loaded(decoder: OpenVinoDecoder, cache: OpenVinoKvCache, depth: int = 1) -> Built:
    executor = TorchExecutor(decoder, cache, MonotonicClock(), depth)
    return Built(executor, 256)


def test_texts_through_scheduler_and_sampler_are_those_of_the_torch_executor() -> None:
    """Together or alone, with steps overlapped, and with pages short enough to preempt."""
    source = DummyWeights("tiny")
    theirs = torch_side(source)
    clock = MonotonicClock()
    executor = TorchExecutor(theirs.decoder, theirs.cache, clock)
    reference = Built(executor, 256)
    prompts = [some_ids(count, seed=count) for count in (70, 5, 33, 100)]
    wanted = Engine(reference, max_seqs=4).greedy(prompts, 12)

    decoder = build_openvino(source, 256, EXACT)
    cache = decoder.make_cache(PAGES)
    assert (
        Engine(loaded(decoder, cache), max_seqs=4, budget_tokens=48).greedy(prompts, 12) == wanted
    )
    assert Engine(loaded(decoder, cache), max_seqs=1).greedy(prompts, 12) == wanted
    short = Engine(loaded(decoder, cache), blocks_total=8, max_model_tokens=128)
    assert short.greedy(prompts, 12) == wanted
    deep = loaded(decoder, cache, depth=2)
    assert Engine(deep, depth=2, max_seqs=4).greedy(prompts, 12) == wanted
    deep.executor.close()


class Read:
    """Tensors of a source, each read once."""

    def __init__(self, source: WeightSource) -> None:
        self.spec: ModelSpec = source.spec
        self.tensor = functools.cache(source.tensor)


def perplexity(side: Side, ids: list[int]) -> float:
    """Teacher-forced in chunks of 100 tokens."""
    parts = []
    for start in range(0, len(ids), 100):
        tokens = torch.tensor(ids[start : start + 100])
        places = torch.arange(start, start + len(tokens))
        blocks = tuple(range(-(-(start + len(tokens)) // PAGE_TOKENS)))
        span = SequenceSpan(0, len(tokens), start, blocks)
        inputs = StepInputs(tokens, places, places, places - start, (), (span,))
        parts.append(side.decoder.forward(inputs, side.cache))
    logits = torch.cat(parts)
    return math.exp(float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))))


def test_the_default_models_quality_is_kept(
    default_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Perplexity of a real text against the torch decoder in float32: equal with weights in
    bf16 (nearly, where products are of bf16, too), and within the stated bounds with int8 weights.
    An int8 cache is judged beside one of bf16 with the same products: they are not its doing."""
    ref = ModelRef(kind=ModelKind.GGUF, path=str(default_model), name="default")
    source = Read(open_weights(ref))
    ids = load_tokenizer(ref).encode(LICENSE.read_text())[:200]
    exact = Precision(torch.bfloat16, torch.float32)
    attention = TorchPagedAttention(PAGE_TOKENS, CPU)
    reference = Decoder(source, attention, 512, exact, CPU)
    wanted = perplexity(
        Side(reference, PlainKvCache(source.spec, PAGES, PAGE_TOKENS, torch.float32, CPU)), ids
    )
    changes = {}
    for name, settings in {
        "bf16": OpenVinoSettings(),
        "int8 weights": OpenVinoSettings(weight_storage=WeightStorage.INT8),
        "int8 cache": OpenVinoSettings(kv_format=KvFormat.INT8),
    }.items():
        changes[name] = perplexity(openvino_side(source, settings), ids) / wanted - 1
    with capsys.disabled():
        print("\n[openvino] perplexity", {name: f"{100 * c:+.3f} %" for name, c in changes.items()})
    assert abs(changes["bf16"]) < (0.01 if cpu_multiplies_bf16() else 0.005)
    assert abs(changes["int8 weights"]) < 0.03
    assert abs((1 + changes["int8 cache"]) / (1 + changes["bf16"]) - 1) < 0.01


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_openvinos_usage_telemetry_is_not_loaded() -> None:
    """OpenVINO's converter reports its own import; we load the runtime without it."""
    program = (
        "import sys; from service.device.openvino.runtime import load_runtime\n"
        "load_runtime().Core()\n"
        "print([name for name in sys.modules if 'openvino_telemetry' in name or '.ovc' in name])"
    )
    assert run_python(program).stdout.strip() == "[]"


def test_without_openvino_there_is_one_line_of_error() -> None:
    """With what to do next."""
    program = (
        "import sys; sys.modules['openvino'] = None\n"
        "from service.config.settings import ConfigError\n"
        "from service.device.openvino.runtime import load_runtime\n"
        "try:\n    load_runtime()\nexcept ConfigError as error:\n    print(error)"
    )
    (line,) = run_python(program).stdout.splitlines()
    assert "pip install openvino" in line


def test_products_have_tiles_where_the_cpu_has_a_unit_for_them(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    for flags, rows in (("fpu avx2 amx_bf16 amx_tile", 32), ("fpu avx2 avx512_bf16", 0)):
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert tile_rows(cpuinfo) == rows

    assert tile_rows(tmp_path / "none") == 0


def test_the_limits_of_an_engine_have_the_tiles_of_its_back_end() -> None:
    model = ModelRef(kind=ModelKind.DUMMY, path="small", name="small")
    config = EngineConfig(model=model, executor="torch", device="cpu", max_model_tokens=64)
    loaded = load_executor(config, MonotonicClock(), lambda line: None)
    with_tiles = replace(loaded, backend=replace(loaded.backend, tile_rows=32))

    assert limits_of(config, loaded).tile_rows == 0
    assert limits_of(config, with_tiles).tile_rows == 32
