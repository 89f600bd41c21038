"""The native decoder against the torch one, in every format; and machines without a compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device import backends
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import KvFormat, PlainKvCache
from service.device.inputs import SequenceSpan, StepInputs
from service.device.loader import load_executor
from service.device.models.model import Decoder
from service.device.native.build import NoNativeLibrary, library_path
from service.device.native.cache import NativeKvCache, native_page_bytes
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.precision import Precision
from service.device.spec import DUMMY_SHAPES
from service.device.weights.dummy import DummyWeights
from telemetry.facts.clock import MonotonicClock

CPU = torch.device("cpu")
TINY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="tiny")
BLOCK_TOKENS = 16
MAX_TOKENS = 1024
Row = tuple[int, int]  # context tokens, query tokens


class SharpWeights(DummyWeights):
    """The tiny shape with an attention that prefers some tokens, as that of trained models does."""

    def tensor(self, name: str) -> torch.Tensor:
        sharper = 8.0 if "q_proj" in name or "k_proj" in name else 1.0
        return super().tensor(name) * sharper


SHARP = SharpWeights("tiny")


def quiet(stage: str) -> None:
    pass


def native(
    weights: NumberKind, cache: NumberKind, rounding: torch.dtype, threads: int = 2
) -> NativeDecoder:
    return NativeDecoder(SHARP, MAX_TOKENS, weights, cache, rounding, threads)


@pytest.fixture(scope="module")
def reference() -> Decoder:
    attention = TorchPagedAttention(BLOCK_TOKENS, CPU)
    precision = Precision(torch.float32, torch.float32)
    return Decoder(SHARP, attention, MAX_TOKENS, precision, CPU)


@pytest.fixture(scope="module")
def exact() -> NativeDecoder:
    return native(NumberKind.FLOAT32, NumberKind.FLOAT32, torch.float32)


def batch(rows: list[Row], blocks: list[list[int]], seed: int) -> StepInputs:
    """One step of `rows`, each over its own blocks, every token sampled."""
    generator = torch.Generator().manual_seed(seed)
    positions: list[int] = []
    slot_mapping: list[int] = []
    decodes: list[SequenceSpan] = []
    prefills: list[SequenceSpan] = []
    for (context, count), table in zip(rows, blocks, strict=True):
        span = SequenceSpan(len(positions), count, context, tuple(table))
        (decodes if count == 1 else prefills).append(span)
        for position in range(context, context + count):
            positions.append(position)
            slot_mapping.append(
                table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
            )
    ids = torch.randint(0, 512, (len(positions),), generator=generator)
    return StepInputs(
        token_ids=ids,
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slot_mapping),
        sampled=torch.arange(len(positions)),
        decodes=tuple(decodes),
        prefills=tuple(prefills),
    )


def tables(rows: list[Row], pages: int, seed: int) -> list[list[int]]:
    """Blocks for each row, in no order."""
    free = torch.randperm(pages, generator=torch.Generator().manual_seed(seed)).tolist()
    needed = [-(-(context + count) // BLOCK_TOKENS) for context, count in rows]
    return [[free.pop() for _ in range(count)] for count in needed]


def run_both(
    reference: Decoder, ours: NativeDecoder, kind: NumberKind, rows: list[Row], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts are computed first, in one step; then the rows, all of them in one."""
    pages = sum(-(-(context + count) // BLOCK_TOKENS) for context, count in rows) + 3
    blocks = tables(rows, pages, seed)
    spec = reference.spec
    theirs_cache = PlainKvCache(spec, pages, BLOCK_TOKENS, torch.float32, CPU)
    ours_cache = NativeKvCache(spec, pages, kind)
    before = [(0, context) for context, _ in rows if context]
    if before:
        held = [table for table, (context, _) in zip(blocks, rows, strict=True) if context]
        step = batch(before, held, seed)
        reference.forward(step, theirs_cache)
        ours.forward(step, ours_cache)
    step = batch(rows, blocks, seed + 1)
    return ours.forward(step, ours_cache), reference.forward(step, theirs_cache)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 70))),
        min_size=1,
        max_size=9,
    ),
    seed=st.integers(0, 1000),
)
def test_any_mixed_batch_gives_the_reference_s_logits(
    reference: Decoder, exact: NativeDecoder, rows: list[Row], seed: int
) -> None:
    ours, theirs = run_both(reference, exact, NumberKind.FLOAT32, rows, seed)
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("rows", [[(700, 1)], [(1000, 1), (300, 1)], [(520, 5)]])
def test_a_long_context_cut_into_splits_gives_the_reference_s_logits(
    reference: Decoder, exact: NativeDecoder, rows: list[Row]
) -> None:
    """Few rows over many pages: the context is cut along its length and merged."""
    ours, theirs = run_both(reference, exact, NumberKind.FLOAT32, rows, seed=4)
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("weights", "cache", "least_rms", "most_rms"),
    [
        (NumberKind.BFLOAT16, NumberKind.FLOAT32, 0.0, 1e-6),  # the dummy's weights are bf16
        (NumberKind.BFLOAT16, NumberKind.BFLOAT16, 1e-5, 0.004),
        (NumberKind.INT8, NumberKind.FLOAT32, 1e-4, 0.02),
        (NumberKind.FLOAT32, NumberKind.INT8, 1e-4, 0.01),
        (NumberKind.INT8, NumberKind.INT8, 1e-4, 0.02),
    ],
)
def test_stored_formats_differ_from_float32_by_their_rounding(
    reference: Decoder,
    weights: NumberKind,
    cache: NumberKind,
    least_rms: float,
    most_rms: float,
) -> None:
    """Relative to the logits' own size; and they do differ, or the format was not used."""
    decoder = native(weights, cache, torch.float32)
    rows = [(40, 1), (333, 1), (0, 50), (17, 20), (600, 1)]
    ours, theirs = run_both(reference, decoder, cache, rows, seed=8)

    rms = ((ours - theirs).square().mean() / theirs.square().mean()).sqrt().item()
    assert least_rms <= rms < most_rms


@pytest.mark.parametrize("weights", [NumberKind.FLOAT32, NumberKind.INT8])
def test_threads_that_start_late_or_never_change_no_bit(weights: NumberKind) -> None:
    """Far more threads than cores: most are still asleep, or put aside, when a phase is over."""
    alone, crowd = (native(weights, NumberKind.FLOAT32, torch.float32, n) for n in (1, 12))
    for number, rows in enumerate([[(40, 1)], [(9, 1)] * 7, [(0, 60), (30, 1), (3, 50)]]):
        step = batch(rows, tables(rows, 40, number), number)
        wanted = alone.forward(step, NativeKvCache(alone.spec, 40, NumberKind.FLOAT32))
        for _ in range(150):
            cache = NativeKvCache(crowd.spec, 40, NumberKind.FLOAT32)
            assert torch.equal(crowd.forward(step, cache), wanted)


def test_a_step_that_samples_nothing_gives_no_logits(exact: NativeDecoder) -> None:
    step = batch([(0, 20)], [[0, 1]], seed=1)
    silent = StepInputs(
        token_ids=step.token_ids,
        positions=step.positions,
        slot_mapping=step.slot_mapping,
        sampled=torch.empty(0, dtype=torch.int64),
        decodes=(),
        prefills=step.prefills,
    )
    logits = exact.forward(silent, NativeKvCache(exact.spec, 2, NumberKind.FLOAT32))
    assert logits.shape == (0, 512)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", 512),
        ("token_ids", -1),
        ("positions", 1024),
        ("slot_mapping", 32),
        ("sampled", 20),
    ],
)
def test_a_batch_that_points_outside_is_an_error_and_not_a_crash(
    exact: NativeDecoder, field: str, value: int
) -> None:
    step = batch([(0, 20)], [[0, 1]], seed=1)
    getattr(step, field)[3] = value
    cache = NativeKvCache(exact.spec, 2, NumberKind.FLOAT32)
    with pytest.raises(IndexError, match="out of bounds"):
        exact.forward(step, cache)
    with pytest.raises(IndexError, match="out of bounds"):
        exact.forward(batch([(0, 20)], [[0, 2]], seed=1), cache)


@pytest.mark.parametrize("kind", NumberKind)
def test_page_bytes_are_the_bytes_of_the_storage(kind: NumberKind) -> None:
    spec = DUMMY_SHAPES["tiny"]
    cache = NativeKvCache(spec, 5, kind)
    held = sum(numbers.numel() * numbers.itemsize for numbers in cache.storage)
    assert held == 5 * native_page_bytes(spec, kind)
    assert cache.format is (KvFormat.INT8 if kind is NumberKind.INT8 else KvFormat.PLAIN)


@pytest.mark.parametrize(("bf16", "name"), [(False, "native-cpu"), (True, "openvino-cpu")])
def test_auto_chooses_the_fastest_weight_format_of_the_cpu_and_reports_it(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, name: str
) -> None:
    """Our own decoder has no use for bf16 matrix instructions, and OpenVINO's has."""
    monkeypatch.setattr(backends, "cpu_multiplies_bf16", lambda: bf16)
    loaded = load_executor(EngineConfig(model=TINY), MonotonicClock(), quiet)
    assert loaded.backend.name == name
    assert "bfloat16" in loaded.backend.dtype


def test_without_a_compiler_auto_chooses_another_executor_and_reports_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "cpu_multiplies_bf16", lambda: False)
    monkeypatch.setenv("PATH", "/nonexistent")
    loaded = load_executor(EngineConfig(model=TINY), MonotonicClock(), quiet)
    assert "native" not in loaded.backend.name.split()[0]
    assert "no C++ compiler" in loaded.backend.name


def test_without_a_compiler_native_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match=r"--executor native: no C\+\+ compiler .* install g\+\+"):
        load_executor(EngineConfig(model=TINY, executor="native"), MonotonicClock(), quiet)


def test_a_compiler_that_fails_is_reported_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-g++"
    broken.write_text("#!/bin/sh\necho 'error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NoNativeLibrary, match="no such thing"):
        library_path(quiet)
    assert list((tmp_path / "phasescope" / "native").iterdir()) == []


def test_the_library_is_compiled_once_and_again_for_another_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the compiler counts its calls and makes an empty library."""
    calls = tmp_path / "calls"
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\necho x >> {calls}\nwhile [ "$1" != -o ]; do shift; done\n'
        f'{shutil.which("g++")} -shared -x c /dev/null -o "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stages: list[str] = []
    first = library_path(stages.append)
    assert library_path(stages.append) == first
    assert len(stages) == 1
    assert calls.read_text() == "x\n"

    compiler.write_text(compiler.read_text() + "# another version\n")
    assert library_path(stages.append) != first


@pytest.mark.parametrize("executor", ["native", "openvino"])
def test_cpu_executors_refuse_another_device(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = EngineConfig(model=TINY, executor=executor, device="cuda")
    with pytest.raises(ConfigError, match="computes on a CPU; use --device cpu"):
        load_executor(config, MonotonicClock(), quiet)
