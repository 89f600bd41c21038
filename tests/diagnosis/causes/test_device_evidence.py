"""What GPUs, ranks and a device's clock say of slow steps; what is not measured says nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from benchmarks.diagnosis.gpu.twins import judge_gpu
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts
from diagnosis.detection.gpus import device_usual, gpus_of
from diagnosis.detection.reference import Reference, slo_baseline
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.checks import step_failure
from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.faults.gpu_faults import GPU_FAULTS
from lab.twins.registry import build_gpu_twin
from telemetry.facts.host_records import GpuSampled, GpuXid
from telemetry.facts.reasons import ClockEvent
from telemetry.facts.step_parts import DeviceTimes
from tests.support.worlds.facts import MS, step


def evidence_of(name: str, seed: int = 1003) -> Mapping[str, float | None]:
    """Of the last finding of a twin's symptom."""
    known, one = GPU_FAULTS[name], build_gpu_twin(name, seed)
    diagnoser, found = Diagnoser(None, one.policy), dict[str, float | None]()
    for fact in one.facts:
        diagnoser.on_facts([fact])
        for finding in diagnoser.diagnosis().findings:
            if finding.symptom.value == known.symptom and not finding.blows:
                found = {entry.name: entry.value for entry in finding.evidence}
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", GPU_FAULTS)
def test_a_twin_with_gpus_is_named_by_what_they_measured(name: str) -> None:
    judged = judge_gpu((name, 1003))

    assert judged.is_right, judged
    assert judged.is_told, judged


@pytest.mark.long
def test_a_quantity_that_the_driver_does_not_have_is_not_measured() -> None:
    """Not zero: a GPU without counters has no memory traffic that could be compared."""
    without = evidence_of("other_process_without_counters")

    assert without["gpu_memory_more"] == pytest.approx(9.0, abs=0.1)
    assert without["gpu_dram"] is None
    assert without["usual_gpu_dram"] is None


def test_a_gpu_that_is_idle_says_nothing_of_its_clock() -> None:
    idle = GpuSampled(at_ns=1, gpu="0", sm_clock_mhz=345, clock_events=int(ClockEvent.GPU_IDLE))
    busy = GpuSampled(at_ns=2, gpu="0", sm_clock_mhz=1980, clock_events=0)

    assert gpus_of(Counts(gpus=[idle])) == {}
    assert gpus_of(Counts(gpus=[idle, busy]))["0"].sm_clock_mhz == 1980


def test_what_no_sample_has_is_none() -> None:
    found = gpus_of(Counts(gpus=[GpuSampled(at_ns=1, gpu="0")]))["0"]

    assert (found.sm_clock_mhz, found.slowed_share, found.memory_used_bytes) == (None, None, None)


def test_the_share_of_bubbles_is_of_the_steps_that_have_a_clock() -> None:
    """The first step has no step before it."""
    counted = Aggregator()
    assert device_usual(counted.steps(0, 100 * MS)).bubble_share is None
    counted.on_fact(step(1, 0, 10, [], device=DeviceTimes(6 * MS)))
    counted.on_fact(step(2, 10, 20, [], device=DeviceTimes(6 * MS, 4 * MS)))
    counted.on_fact(step(3, 20, 30, []))
    usual = device_usual(counted.steps(0, 100 * MS))

    assert usual.bubble_share == pytest.approx(0.4)
    assert usual.skew_share is None


def test_an_xid_alone_is_no_failure_and_a_death_beside_one_is() -> None:
    """Some errors are of other processes; an engine that ends has lost its GPU."""
    xid = GpuXid(at_ns=1, gpu="0", xid=79)
    alone = step_failure(Counts(xids=[xid]), Aggregator())
    died = step_failure(Counts(xids=[xid], deaths=["ended by signal 6"]), Aggregator())
    without = step_failure(Counts(deaths=["ended by signal 6"]), Aggregator())

    assert alone is None
    assert without is None
    assert died is not None
    assert died.symptom is Symptom.STEP_FAILURE
    assert "GPU 0: XID 79" in died.claim
    assert {entry.name: entry.value for entry in died.evidence}["deaths"] == 1


def test_a_baseline_of_an_older_version_is_read_without_what_it_lacks() -> None:
    later = ("gpus", "device", "received_share", "speed_spread", "prompt_skew", "output_skew")
    fields = msgspec.to_builtins(slo_baseline())
    older = {name: value for name, value in fields.items() if name not in later}

    assert msgspec.convert(older, Reference) == slo_baseline()
