"""NVML: values where there are values, reasons where there are not, never a zero instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from telemetry.facts.base import Unavailable
from telemetry.facts.clock import ManualClock
from telemetry.facts.host_records import GpuFound, GpuSampled, GpuXid
from telemetry.facts.reasons import ClockEvent
from telemetry.facts.recorder import Lane
from telemetry.host.gpu import GpuSample, GpuSampler
from telemetry.host.gpu_device import clock_event_names
from tests.support.models.fake_nvml import FakeNvml, loaded
from tests.support.servers.server import eventually

SECOND = 1_000_000_000


class Bench:
    """A sampler whose thread never wakes up by itself, so that a test takes each sample."""

    def __init__(self, nvml: FakeNvml | None) -> None:
        self.nvml = nvml
        self.clock = ManualClock(SECOND)
        self.lane, self.xid_lane = Lane(), Lane()
        self.sampler = GpuSampler(self.clock, self.lane, self.xid_lane, interval_s=3600)

    def sample(self, after_ns: int = SECOND) -> GpuSample:
        self.clock.advance(after_ns)
        return self.sampler.sample()[0]


@contextmanager
def running(variant: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with loaded(variant, folder, patch) as nvml:
        patch.setattr("telemetry.host.gpu_events.WAIT_MS", 20)  # as long as its end may take
        bench = Bench(nvml)
        bench.sampler.start()
        try:
            yield bench
        finally:
            bench.sampler.stop()
        left = ("inits", "event_sets", "gpm_samples", "sets", "blocking_calls")
        assert {name: nvml.get(name) for name in left} == dict.fromkeys(left, 0)


@pytest.fixture
def hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with running("HOPPER", tmp_path, monkeypatch) as bench:
        yield bench


def why(sample: GpuSample, quantity: str) -> str:
    value = sample.values[quantity]
    assert isinstance(value, Unavailable), value
    return value.why


def test_without_a_driver_the_reason_is_given() -> None:
    """Here there is no GPU: nothing raises, nothing reads as 0, no fact is written."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    bench = Bench(None)
    bench.sampler.start()
    found = bench.sampler.latest().as_dict()
    bench.sampler.stop()

    assert list(found) == ["status"]
    assert str(found["status"]).startswith("unavailable: ")
    assert (len(bench.lane), bench.sampler.xid_status) == (0, "unavailable: no GPU")


def test_each_quantity_is_a_value_or_a_reason(hopper: Bench) -> None:
    """A measured zero stays a zero; what the driver does not support says so."""
    sample = hopper.sampler.latest()

    assert (sample.status, sample.name, sample.gpu) == ("ok", "Fake H200", "0")
    expected = {
        "memory_used_bytes": 401, "memory_reserved_bytes": 100, "memory_controller_busy_pct": 0,
        "power_w": 250, "power_limit_w": 700, "power_instant_w": 251, "energy_j": 12.345,
        "sm_clock_mhz": 1755, "sm_clock_max_mhz": 1980, "memory_clock_mhz": 3000,
        "memory_temperature_c": 61, "ecc_corrected": 7, "ecc_uncorrected": 0,
        "remapped_rows_corrected": 2, "remap_pending": 1, "remap_failed": 0,
        "power_capped_s": 2.5,
    }  # fmt: skip
    assert {name: sample.number(name) for name in expected} == pytest.approx(expected)
    assert why(sample, "temperature_c") == why(sample, "power_braked_s") == "Not Supported"
    assert why(sample, "pcie_replays") == "a value of unknown type 99"
    assert str(sample.as_dict()["temperature_c"]) == "unavailable: Not Supported"


def test_a_call_that_failed_is_tried_again(hopper: Bench) -> None:
    assert hopper.nvml is not None
    hopper.nvml.set_int("power_code", 4)
    refused = hopper.sample()
    hopper.nvml.set_int("power_code", 0)

    assert why(refused, "power_w") == "Insufficient Permissions"
    assert refused.number("power_limit_w") == 700
    assert hopper.sample().number("power_w") == 250


def test_clock_events_have_names(hopper: Bench) -> None:
    """One that has no name yet is not swallowed."""
    shown = hopper.sampler.latest().as_dict()

    assert shown["clock_event_names"] == "sw_power_cap, hw_thermal_slowdown, 0x100000"
    assert clock_event_names(0) == ()


def test_hardware_counters_compare_two_samples(hopper: Bench) -> None:
    """The first has none; each later one is from the one before, in the right order."""
    assert hopper.nvml is not None
    first = hopper.sampler.latest()
    hopper.nvml.set("gpm_counter", 5 + 40)
    second = hopper.sample()
    hopper.nvml.set("gpm_counter", 5 + 40 + 12)
    third = hopper.sample()

    assert "first of two samples" in why(first, "dram_bandwidth_pct")
    assert (second.number("dram_bandwidth_pct"), second.number("sm_busy_pct")) == (40, 20)
    assert third.number("dram_bandwidth_pct") == 12
    assert third.number("nvlink_received_bytes_per_s") == 1 << 20
    assert why(third, "tensor_busy_pct") == "GPM: Not Supported"


def test_samples_too_close_or_too_far_apart_have_a_reason_instead_of_counters(
    hopper: Bench,
) -> None:
    """Too close is not taken at all; after a gap a new pair is begun."""
    assert hopper.nvml is not None
    hopper.sample()
    hopper.nvml.set("gpm_counter", 5 + 30)
    close = hopper.sample(after_ns=50_000_000)
    apart = hopper.sample(after_ns=60_000_000)
    far = hopper.sample(after_ns=60 * SECOND)
    hopper.nvml.set("gpm_counter", 5 + 30 + 8)

    assert "100 ms apart" in why(close, "dram_bandwidth_pct")
    assert apart.number("dram_bandwidth_pct") == 30
    assert "too long ago" in why(far, "dram_bandwidth_pct")
    assert hopper.sample().number("dram_bandwidth_pct") == 8


def test_a_counter_that_gives_no_number_is_unavailable(hopper: Bench) -> None:
    assert hopper.nvml is not None
    hopper.nvml.set_double("gpm_nan", math.nan)

    assert why(hopper.sample(), "sm_occupancy_pct") == "GPM: no number"


def test_pcie_traffic_is_a_difference_of_counters(hopper: Bench) -> None:
    """A counter that began anew has no rate; the call of NVML that blocks is never made."""
    assert hopper.nvml is not None
    first = hopper.sampler.latest()
    hopper.nvml.set("pcie_sent", 1000 + 600)
    second = hopper.sample(after_ns=2 * SECOND)
    hopper.nvml.set("pcie_sent", 10)
    third = hopper.sample()

    assert "first of two readings" in why(first, "pcie_sent_bytes_per_s")
    assert second.number("pcie_sent_bytes_per_s") == 300
    assert second.number("pcie_received_bytes_per_s") == 0
    assert why(third, "pcie_sent_bytes_per_s") == "the counter began anew"


def test_samples_of_every_gpu_become_facts(hopper: Bench) -> None:
    """With the peaks of the hardware: 2 x 3201 MHz x 6144 bits, 132 x 4096 x 1980 MHz."""
    facts = hopper.lane.drain()
    found = [fact for fact in facts if isinstance(fact, GpuFound)]
    sampled = [fact for fact in facts if isinstance(fact, GpuSampled)]

    assert [(fact.gpu, fact.name, fact.driver) for fact in found] == [
        ("0", "Fake H200", "575.1"), ("1", "Fake H200", "575.1"),
    ]  # fmt: skip
    assert found[0].peak_bytes_per_s == pytest.approx(4.917e12, rel=1e-3)
    assert found[0].peak_flop_per_s == pytest.approx(1.0705e15, rel=1e-3)
    assert [(fact.gpu, fact.memory_used_bytes) for fact in sampled] == [("0", 401), ("1", 402)]
    assert sampled[0].memory_busy_pct == 0
    assert sampled[0].dram_bandwidth_pct is None
    assert sampled[0].temperature_c is None


def test_errors_of_a_gpu_become_facts(hopper: Bench) -> None:
    """By number in NVIDIA's list; a memory error without one is none, not 0."""
    assert hopper.nvml is not None
    assert hopper.sampler.xid_status == "ok"
    hopper.nvml.set("xid", 79)
    eventually(lambda: len(hopper.xid_lane) == 1, "the first error")
    hopper.nvml.set("event_type", 2)
    hopper.nvml.set("xid", 1)
    eventually(lambda: len(hopper.xid_lane) == 2, "the second error")

    facts = hopper.xid_lane.drain()
    assert [fact.xid for fact in facts if isinstance(fact, GpuXid)] == [79, None]
    assert hopper.sampler.xid_counts() == {("1", 79): 1, ("1", None): 1}


def test_an_older_gpu_has_no_hardware_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver lacks GPM and calls clock events by their old name; events are refused."""
    with running("AMPERE", tmp_path, monkeypatch) as bench:
        sample = bench.sample()
        status = bench.sampler.xid_status
        found = bench.lane.drain()[0]

    assert why(sample, "dram_bandwidth_pct") == "GPM: Function Not Found"
    assert sample.number("memory_controller_busy_pct") == 0
    assert "sw_power_cap" in str(sample.as_dict()["clock_event_names"])
    assert status == "unavailable: Insufficient Permissions"
    assert isinstance(found, GpuFound)
    assert found.peak_bytes_per_s == pytest.approx(2.039e12, rel=1e-3)
    assert found.peak_flop_per_s == pytest.approx(312e12, rel=1e-2)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("0,7,1", ["0"]),
        ("GPU-last", ["1"]),
        ("GPU-la", ["1"]),
        ("0,-1,1", ["0"]),
    ],
)  # fmt: skip
def test_a_gpu_that_our_engine_cannot_have_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, gpus: list[str]
) -> None:
    """What somebody else computes there would be our slow steps."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with running("HOPPER", tmp_path, monkeypatch) as bench:
        found = [one.gpu for one in bench.sampler.sample()]

    assert found == gpus


def test_without_a_visible_gpu_nothing_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with running("HOPPER", tmp_path, monkeypatch) as bench:
        assert bench.sampler.latest().status.endswith("CUDA_VISIBLE_DEVICES hides it")


def test_mig_instances_are_sampled_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and counters of the instance; what only the whole GPU has comes from it."""
    with running("MIG", tmp_path, monkeypatch) as bench:
        assert bench.nvml is not None
        bench.nvml.set("gpm_counter", 5 + 20)
        bench.clock.advance(SECOND)
        first, second = bench.sampler.sample()
        found = bench.lane.drain()[0]

    assert (first.gpu, second.gpu) == ("0:4", "0:5")
    assert first.number("memory_used_bytes") == 400 + 0x10
    assert (first.number("sm_busy_pct"), second.number("sm_busy_pct")) == (14, 15)
    assert why(first, "gpu_busy_pct") == "Not Supported"
    assert first.number("power_w") == 250
    assert isinstance(found, GpuFound)
    assert (found.peak_bytes_per_s, found.peak_flop_per_s) == (None, None)


def test_a_gpu_whose_calls_fail_has_reasons_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running("FAILING", tmp_path, monkeypatch) as bench:
        sample = bench.sample()
        status = bench.sampler.xid_status
        facts = bench.lane.drain()

    assert sample.name is None
    assert all(isinstance(value, Unavailable) for value in sample.values.values())
    assert why(sample, "memory_used_bytes") == "GPU is lost"
    assert status == "unavailable: GPU is lost"
    assert isinstance(facts[-1], GpuSampled)
    assert facts[-1] == GpuSampled(at_ns=facts[-1].at_ns, gpu="0")


def test_the_names_of_clock_events_are_those_of_nvml() -> None:
    """The diagnosis does not load NVML's library."""
    for event in ClockEvent:
        assert clock_event_names(event) == ((event.name or "").lower(),)
