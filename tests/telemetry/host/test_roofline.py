"""What steps read and compute, against how long they took and what the hardware can do."""

from __future__ import annotations

import msgspec
import pytest

from telemetry.facts.engine_records import EngineStarted, Row
from telemetry.facts.engine_start import ModelShape
from telemetry.facts.host_records import GpuFound, GpuSampled
from telemetry.host.roofline import (
    WINDOW_NS,
    Peaks,
    Roofline,
    StepFloor,
    StepKind,
    layer_weights,
    prefill_flop,
    step_bytes,
    step_flop,
    stored_bytes,
)
from tests.support.worlds.facts import MS, decode, prefill, step

SHAPE = ModelShape(
    layers=2, hidden=8, q_size=8, kv_size=4, ffn=16, vocab=100, weight_bytes=2.0, cell_bytes=32
)
WEIGHTS = 2 * (8 * (2 * 8 + 2 * 4) + 3 * 8 * 16) + 100 * 8
SECOND = 1_000_000_000
FLOOR = StepFloor(SHAPE)


def started(backend: str = "native-cpu", shape: ModelShape | None = SHAPE) -> EngineStarted:
    return EngineStarted(
        0, 1, "model", backend, "bfloat16", 10, 16, 2048, 8, 512, True, 1, 16, 4096, shape=shape
    )


def test_a_decode_reads_all_weights_once_and_its_contexts() -> None:
    kind, work = FLOOR.work_of(step(0, 10, 30, [decode(1, 50), decode(2, 70)]), since_ns=0)

    assert kind is StepKind.DECODE
    assert layer_weights(SHAPE) * 2 + 800 == WEIGHTS
    assert work.bytes == WEIGHTS * 2 + 120 * 32
    assert work.flop == 2 * layer_weights(SHAPE) * 2 * 2 + 4 * 2 * 8 * (51 + 71) + 2 * 800 * 2
    assert (work.steps, work.span_ns, work.forward_ns) == (1, 20 * MS, 20 * MS)


def test_the_flop_of_a_prompt_are_those_of_its_tokens_one_by_one() -> None:
    kind, work = FLOOR.work_of(step(0, 0, 10, [prefill(1, tokens=37)]), since_ns=0)

    assert kind is StepKind.PREFILL
    assert work.flop == prefill_flop(SHAPE, 37)
    assert work.bytes == step_bytes(SHAPE, 37)


def test_a_chunk_that_samples_nothing_needs_no_head() -> None:
    _, last = FLOOR.work_of(step(0, 0, 10, [prefill(1, 8, 16)]), 0)
    _, middle = FLOOR.work_of(step(0, 0, 10, [prefill(1, 8, 16, sampled=False)]), 0)

    assert last.flop - middle.flop == 2 * 800
    assert middle.flop == step_flop(SHAPE, 8, 8 * 16 + 36, 0)


@pytest.mark.parametrize("is_prefill", [False, True])
@pytest.mark.parametrize(("tokens", "context"), [(1, 3), (1, 30), (4, 6), (9, 0), (9, 30), (1, 0)])
def test_layers_with_a_window_read_no_more_than_it(
    tokens: int, context: int, is_prefill: bool
) -> None:
    """Counted token by token: one layer of two sees 8 tokens, the query's own included."""
    shape = msgspec.structs.replace(SHAPE, windows=((8, 1),))
    row = Row(1, is_prefill, tokens, context, 0, 1, False)
    _, work = StepFloor(shape).work_of(step(0, 0, 10, [row]), 0)

    places = range(context, context + tokens)
    seen = [{key for key in range(at + 1) if at - key < 8} for at in places]
    cells = {key for keys in seen for key in keys if is_prefill or key < context}
    everything = context + (tokens if is_prefill else 0)
    pairs = sum(len(keys) for keys in seen) + sum(at + 1 for at in places)
    assert work.bytes == step_bytes(shape, (len(cells) + everything) / 2)
    assert work.flop == step_flop(shape, tokens, pairs / 2, 1)


def test_of_a_mixture_a_token_reads_its_experts_and_memory_holds_all() -> None:
    """Four experts of 16 columns, of which a token goes through one."""
    shape = msgspec.structs.replace(SHAPE, experts=4, idle_ffn=48)

    assert layer_weights(shape) == layer_weights(SHAPE) + 4 * 8
    every_expert = 2 * (3 * 8 * 48 + 4 * 8) + WEIGHTS
    assert stored_bytes(shape) == every_expert * 2
    assert stored_bytes(SHAPE) == step_bytes(SHAPE, 0)


def test_drafts_are_rows_of_several_tokens() -> None:
    row = Row(1, False, 4, 10, 0, 2, False)
    kind, work = FLOOR.work_of(step(0, 0, 10, [row]), 0)

    assert kind is StepKind.DECODE
    assert work.flop == step_flop(SHAPE, 4, 4 * 10 + 10, 1)


def test_steps_that_overlap_count_their_time_once() -> None:
    """With a pipeline a step's span begins where the one before it ended."""
    fold = Roofline()
    fold.on_facts([
        started(), step(0, 0, 100, [decode()]), step(1, 10, 200, [prefill(1), decode(2)]),
    ])  # fmt: skip

    assert fold.totals[StepKind.DECODE].span_ns == 100 * MS
    assert fold.totals[StepKind.MIXED].span_ns == 100 * MS
    assert fold.totals[StepKind.PREFILL].steps == 0


def test_shares_of_the_peak_need_a_peak() -> None:
    """On a CPU without measured peaks: rates, and no shares."""
    bytes_per_step, flop = WEIGHTS * 2 + 5 * 32, step_flop(SHAPE, 1, 6, 1)
    facts = [started(), step(0, 0, 10, [decode()]), step(1, 10, 20, [decode()])]
    unknown, known = Roofline(), Roofline(Peaks(bytes_per_step * 200.0, flop * 400.0, "measured"))
    for fold in (unknown, known):
        fold.on_facts(facts)
    without, found = (fold.view(20 * MS).achieved["decode"] for fold in (unknown, known))

    assert without.gb_per_s == pytest.approx(bytes_per_step * 100 / 1e9)
    assert (without.mbu, without.mfu) == (None, None)
    assert (found.mbu, found.mfu) == (pytest.approx(0.5), pytest.approx(0.25))
    assert unknown.view(20 * MS).peak_source == "not measured"


def test_the_view_is_of_the_last_seconds_and_totals_are_not() -> None:
    fold = Roofline()
    fold.on_facts([started(), step(0, 0, 10, [decode()])])
    now_ns = WINDOW_NS + 2 * SECOND

    assert fold.view(SECOND).achieved["decode"].steps == 1
    assert fold.view(now_ns).achieved == {}
    assert fold.totals[StepKind.DECODE].steps == 1


def test_without_a_model_shape_there_is_no_roofline() -> None:
    """A journal of an older version has none; failed steps computed nothing that counts."""
    fold = Roofline()
    fold.on_facts([started(shape=None), step(0, 0, 10, [decode()])])
    other = Roofline()
    wasted = msgspec.structs.replace(decode(), wasted=True)
    other.on_facts([started(), step(0, 0, 10, [wasted])])

    assert fold.view(SECOND).achieved == other.view(SECOND).achieved == {}


def gpu_facts(dram_pct: float | None) -> list[GpuFound | GpuSampled]:
    return [
        GpuFound(0, "0", "H200", None, peak_bytes_per_s=4e12, peak_flop_per_s=1e15),
        GpuSampled(SECOND, "0", dram_bandwidth_pct=dram_pct, memory_busy_pct=80.0),
    ]


def test_on_a_gpu_modelled_traffic_is_compared_with_hardware_counters() -> None:
    """12.5 % of 4 TB/s; the peaks are the GPU's own."""
    fold = Roofline(Peaks(1.0, 1.0, "a CPU's"))
    facts = [started("flash-cuda"), *gpu_facts(12.5), step(0, 1000, 1500, [decode()])]
    fold.on_facts(facts)
    view = fold.view(2 * SECOND)

    assert view.peak_source == "NVML, H200"
    assert view.peak_gb_per_s == 4000
    assert view.bandwidth.provenance == "gpm"
    assert view.bandwidth.measured_gb_per_s == pytest.approx(500)
    modelled = (WEIGHTS * 2 + 5 * 32) / 1e9
    assert view.bandwidth.modelled_gb_per_s == pytest.approx(modelled)
    assert view.bandwidth.measured_over_modelled == pytest.approx(500 / modelled)


def test_time_in_which_memory_was_busy_is_never_bandwidth() -> None:
    fold = Roofline()
    fold.on_facts([started("torch-cuda"), *gpu_facts(None), step(0, 1000, 1500, [decode()])])
    found = fold.view(2 * SECOND).bandwidth

    assert found.provenance == "nvml-busy%"
    assert (found.measured_gb_per_s, found.measured_over_modelled) == (None, None)
    assert found.memory_busy_pct == 80


def test_a_gpu_that_the_engine_does_not_use_is_not_compared_with() -> None:
    fold = Roofline()
    fold.on_facts([started("native-cpu"), *gpu_facts(50.0), step(0, 1000, 1500, [decode()])])
    view = fold.view(2 * SECOND)

    assert (view.peak_gb_per_s, view.peak_source) == (None, "not measured")
    assert view.bandwidth.provenance == "model"
    assert view.bandwidth.measured_gb_per_s is None
