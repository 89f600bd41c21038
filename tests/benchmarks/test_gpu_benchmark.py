"""What of the GPU benchmark needs no GPU: its statistics, its workload, its budget of time, its
targets, and what it makes of a peer's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.abba import CONTROL, OFF, ON, median_costs
from benchmarks.gpu.budget import Budget, Part, State
from benchmarks.gpu.counters import counted_bytes_per_s, gpu_state
from benchmarks.gpu.report import table
from benchmarks.gpu.sizes import SHAPES, billions
from benchmarks.gpu.targets import targets
from benchmarks.gpu.telemetry_cost import Abba, Load
from benchmarks.gpu.transformers_peer import accepted, answers_in, config_of
from benchmarks.gpu.workload import lean_workload
from benchmarks.paired import Block, Pair
from benchmarks.recording import Instant
from service.device.spec import DUMMY_SHAPES
from service.engine.admission import Limits
from telemetry.facts.base import Unavailable
from telemetry.facts.clock import ManualClock
from tests.support.models.fake_nvml import loaded

SECOND = 1_000_000_000
VOCAB = 128_256


# --- statistics ----------------------------------------------------------------------------


def block(state: str, slower: float, draw: np.random.Generator) -> Block:
    """200 steps of 5 ms, `slower` by a share, with 2 % of noise and now and then a pause."""
    gaps_ms = 5 * (1 + slower) * (1 + draw.normal(0, 0.02, 200))
    if draw.random() < 0.1:
        gaps_ms[0] += 300.0
    return Block(state, 64 * 200 / gaps_ms.sum() * 1e3, gaps_ms)


def pairs(slower: float, count: int = 30) -> list[Pair]:
    draw = np.random.default_rng(3)
    return [(block(OFF, 0.0, draw), block(ON, slower, draw)) for _ in range(count)]


def test_a_known_cost_is_found_although_some_blocks_were_disturbed() -> None:
    """A pause of 300 ms in one block in ten is 30 % of its throughput, and moves no median."""
    found = median_costs(pairs(0.01))

    assert found["throughput"].percent == pytest.approx(100 * (1 - 1 / 1.01), abs=0.2)
    assert found["throughput"].low > 0.5
    assert found["step_p50"].percent == pytest.approx(1, abs=0.3)
    assert found["step_p99"].low < 1 < found["step_p99"].high


def test_no_cost_is_found_in_noise() -> None:
    found = median_costs(pairs(0.0))

    for cost in found.values():
        assert cost.low <= 0 <= cost.high
    assert abs(found["throughput"].percent) < 0.2


def limits(rows: int) -> Limits:
    return Limits(
        block_tokens=16, blocks_total=8192, max_model_tokens=1024, max_seqs=rows,
        budget_tokens=1024, chunked_prefill=True, queue_limit_requests=512,
        queue_limit_tokens=1 << 20,
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 5])
def test_blocks_are_played_through_the_engine_process_s_own_loop(batch: int) -> None:
    """On an executor that answers at once: off and on in pairs, and off against off."""
    load = Load(batch=batch, context=32, steps=20, pairs=3)
    found = Abba(Instant(), limits(8), 500, load).measure()

    assert set(found["cost_percent"]) == {CONTROL, ON}
    assert set(found["cost_percent"][ON]) == {"throughput", "step_p50", "step_p99"}
    assert found["tokens_per_s"][OFF] > 0
    assert found["device_busy"] == {OFF: None, CONTROL: None, ON: None}


# --- workload ------------------------------------------------------------------------------


def test_the_workload_is_that_of_lean_engines() -> None:
    """nano-vllm states 142,827 tokens in and 133,966 out."""
    asked = lean_workload(VOCAB)

    assert len(asked) == 256
    assert sum(len(one.prompt) for one in asked) == 142_827
    assert sum(one.output_tokens for one in asked) == 133_966
    assert all(100 <= len(one.prompt) <= 1024 for one in asked)
    assert all(100 <= one.output_tokens <= 1024 for one in asked)


def test_the_same_seed_gives_the_same_sequences() -> None:
    """Within the vocabulary, whatever that is."""
    small = lean_workload(500, 20, (4, 12), seed=7)

    assert small == lean_workload(500, 20, (4, 12), seed=7)
    assert small != lean_workload(500, 20, (4, 12), seed=8)
    assert max(token for one in small for token in one.prompt) < 500
    assert {len(one.prompt) for one in small} <= set(range(4, 13))


# --- budget --------------------------------------------------------------------------------


class Bench:
    """A budget of 100 seconds on a clock that moves as parts take their time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: dict[str, Any] = {}
        self.saved: list[list[str]] = []
        self.budget = Budget(self.clock, 100 * SECOND, self.found, self._save, lambda line: None)

    def taking(self, seconds: float, result: Any = "result") -> Callable[[], Any]:
        def run() -> Any:
            self.clock.advance(int(seconds * SECOND))
            return result

        return run

    def states(self) -> dict[str, State]:
        return {part["name"]: part["state"] for part in self.found["parts"]}

    def reason(self, name: str) -> str:
        return next(part["reason"] for part in self.found["parts"] if part["name"] == name)

    def _save(self) -> None:
        self.saved.append([part["name"] for part in self.found["parts"]])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_part_for_which_no_time_is_left_is_skipped(bench: Bench) -> None:
    """A smaller one behind it is not, and each result is in its place."""
    bench.budget.work(
        [
            Part(("engine", "small", "load"), 30, bench.taking(60)),
            Part(("engine", "large", "load"), 50, bench.taking(50)),
            Part(("engine", "small", "decode"), 30, bench.taking(20, [1])),
        ]
    )

    assert bench.found["engine"] == {"small": {"load": "result", "decode": [1]}}
    assert bench.states() == {
        "engine/small/load": State.DONE,
        "engine/large/load": State.SKIPPED,
        "engine/small/decode": State.DONE,
    }
    assert bench.reason("engine/large/load") == "takes about 50 s, and 40 s are left"
    assert bench.budget.left_s == 20


def test_what_a_failed_part_leaves_is_its_error_s_first_line(bench: Bench) -> None:
    """And those that need it are skipped, the others not."""

    def fail() -> None:
        raise RuntimeError("CUDA error: misaligned address\nand so on, for pages")

    bench.budget.work(
        [
            Part(("load",), 1, fail),
            Part(("decode",), 1, bench.taking(1), ("load",)),
            Part(("ceilings",), 1, bench.taking(1)),
        ]
    )

    assert list(bench.states().values()) == [State.FAILED, State.SKIPPED, State.DONE]
    assert bench.reason("load") == "RuntimeError: CUDA error: misaligned address"
    assert bench.reason("decode") == "needs load, which is not there"


def test_what_was_found_is_saved_after_each_part(bench: Bench) -> None:
    def parts() -> Iterator[Part]:
        yield Part(("first",), 1, bench.taking(1))
        assert bench.saved == [["first"]]
        yield Part(("second",), 1, bench.taking(1))

    bench.budget.work(parts())

    assert bench.saved == [["first"], ["first", "second"]]


# --- targets -------------------------------------------------------------------------------


def decode(batch: int, share: float, context: int = 512) -> dict[str, Any]:
    return {
        "batch": batch, "context": context, "step_ms": 4.0, "tokens_per_s": 250.0, "share": share,
        "read_share": share, "busy": 0.98,
    }  # fmt: skip


def cost(percent: float) -> dict[str, float]:
    return {"percent": percent, "low": percent - 0.1, "high": percent + 0.1}


def telemetry(batch: int, percent: float) -> dict[str, Any]:
    measured = dict.fromkeys(("throughput", "step_p50", "step_p99"), cost(percent))
    return {
        "batch": batch,
        "cost_percent": {ON: measured, CONTROL: measured},
        "device_busy": {OFF: 0.99, ON: 0.96},
    }


@pytest.fixture
def found() -> dict[str, Any]:
    """A run with something met, something missed and much not measured."""
    return {
        "stand_in": False,
        "engine": {
            "llama-8b": {
                "decode": [decode(1, 0.81), decode(64, 0.7), decode(1, 0.2, context=2048)],
                "counters": {"measured_over_modelled": None, "why": "GPM needs a Hopper GPU"},
            },
            "llama-1b": {"telemetry": [telemetry(64, 0.4), telemetry(1, 1.2)]},
        },
        "transformers": {"llama-8b": {"times": 2.5, "why": None}},
        "parts": [
            {"name": "engine/llama-8b/prefill", "state": "skipped", "reason": "too late"},
            {"name": "transformers/llama-1b", "state": "failed", "reason": "it broke"},
        ],
    }


def verdicts(found: dict[str, Any]) -> dict[str, tuple[bool | None, str | None]]:
    return {target.name: (target.met, target.why) for target in targets(found)}


def test_each_target_is_met_or_missed_or_says_why_it_was_not_measured(
    found: dict[str, Any],
) -> None:
    """Of two contexts the shorter counts, and of two loads the dearer."""
    got = verdicts(found)

    assert got["llama-8b, decode of 1: share of the copy bandwidth"] == (True, None)
    assert got["llama-8b, decode of 64: share of the copy bandwidth"] == (False, None)
    assert got["llama-8b, decode of 256: share of the copy bandwidth"] == (
        None, "not among what was measured",
    )  # fmt: skip
    assert got["llama-8b, prefill: share of the matrix peak"] == (None, "too late")
    assert got["llama-8b: tokens/s over those of transformers"] == (True, None)
    assert got["llama-1b: tokens/s over those of transformers"] == (None, "it broke")
    assert got["qwen3-0.6b: tokens/s over those of transformers"] == (None, "not measured")
    assert got["llama-1b: cost of telemetry, throughput (%)"] == (False, None)
    assert got["llama-1b, telemetry on: device busy"] == (False, None)
    assert got["llama-8b, decode of 64: device busy"] == (True, None)
    assert got["llama-8b, decode of 64: memory traffic, counted beside modelled, off by"] == (
        None, "GPM needs a Hopper GPU",
    )  # fmt: skip


def test_a_stand_in_meets_and_misses_nothing(found: dict[str, Any]) -> None:
    got = verdicts(found | {"stand_in": True})

    assert set(got.values()) == {(None, "a CPU stood in")}


def test_a_run_that_was_cut_short_has_a_table(found: dict[str, Any]) -> None:
    """So has one that found nothing at all."""
    rows = [target.as_dict() for target in targets(found)]
    shown = table(found | {"targets": rows})

    assert "| llama-8b, decode of 64: share of the copy bandwidth | 0.700 | >= 0.75 | missed |" in (
        shown.splitlines()
    )
    assert "engine/llama-8b/prefill: skipped, too late" in shown
    assert table({}).startswith("0 of 0 back ends")


# --- peer ----------------------------------------------------------------------------------


def test_a_process_that_died_is_answered_for_by_its_last_line() -> None:
    """What it had answered before counts, and then nothing is said of the rest."""
    answer = 'ANSWER {"mode": "flash", "tokens_per_s": 5.0}'

    assert answers_in("loading\nsegmentation fault\n", "flash") == {
        "flash": {"mode": "flash", "error": "segmentation fault"}
    }
    assert answers_in(f"loading\n\n{answer}\nkilled\n", "flash") == {
        "flash": {"mode": "flash", "tokens_per_s": 5.0}
    }
    assert answers_in("", "sdpa")["sdpa"]["error"] == "it ended without a word"


@pytest.mark.parametrize("shape", ["tiny", *SHAPES])
def test_the_peer_s_model_has_as_many_weights_as_ours(shape: str) -> None:
    spec = DUMMY_SHAPES[shape]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(spec))
    matrices = billions(shape) * 1e9 + spec.vocab * spec.hidden * (not spec.tied_embeddings)
    norms = spec.hidden + spec.layers * 2 * (spec.hidden + spec.head_dim * spec.qk_norm)

    assert sum(weights.numel() for weights in model.parameters()) == matrices + norms


def test_a_setting_that_a_version_does_not_have_is_left_out() -> None:
    def serve(prompts: list[str], page_size: int = 256) -> None: ...

    assert accepted(serve, page_size=16, block_size=16) == {"page_size": 16}


# --- counters ------------------------------------------------------------------------------


def test_counted_traffic_is_the_counters_share_of_what_the_memory_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the driver's is left open."""
    clock = ManualClock(SECOND)
    with loaded("HOPPER", tmp_path, monkeypatch) as nvml:

        def decode_for_a_while() -> None:
            clock.advance(SECOND)
            nvml.set("gpm_counter", 5 + 40)

        counted = counted_bytes_per_s(decode_for_a_while, clock)
        state = gpu_state()

        assert counted == pytest.approx(0.40 * 2 * 3201e6 * 6144 / 8)
        assert state["sm_clock_mhz"] == 1755
        assert (nvml.get("inits"), nvml.get("gpm_samples"), nvml.get("sets")) == (0, 0, 0)


def test_without_counters_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded("AMPERE", tmp_path, monkeypatch):
        counted = counted_bytes_per_s(lambda: None, ManualClock(SECOND))

    assert isinstance(counted, Unavailable)
    assert counted.why
