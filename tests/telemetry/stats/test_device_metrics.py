"""Metrics and rates from the device's own clock, and none where it has no clock."""

from __future__ import annotations

from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.step_parts import DeviceTimes
from tests.support.worlds.facts import MS, decode, step
from tests.support.worlds.metrics_world import MetricsWorld, engine_started
from tests.telemetry.host.test_roofline import FLOOR
from tests.telemetry.stats.test_exposition import one, text


def timed(step_id: int, begin: int, end: int, device: DeviceTimes | None) -> StepRecorded:
    return step(step_id, begin, end, [decode(1)], device=device)


def test_busy_time_bubbles_and_phases_are_counted() -> None:
    world = MetricsWorld().feed(
        [
            engine_started(),
            timed(0, 0, 10, DeviceTimes(8 * MS)),
            timed(1, 10, 20, DeviceTimes(7 * MS, 1 * MS)),
            timed(2, 20, 30, DeviceTimes(9 * MS, 2 * MS, 3 * MS, 5 * MS, 1 * MS)),
        ]
    )
    found = text(world)

    assert one(found["phasescope_device_busy_seconds"]) == 0.024
    assert one(found["phasescope_device_bubble_seconds"]) == 0.003
    phases = found["phasescope_device_phase_seconds"]
    assert one(phases, phase="attention") == 0.003
    assert one(phases, phase="matrices") == 0.005
    assert one(phases, phase="sampling") == 0.001


def test_a_device_without_a_clock_has_no_such_values() -> None:
    found = text(MetricsWorld().feed([engine_started(), timed(0, 0, 10, None)]))
    mine = [family for name, family in found.items() if name.startswith("phasescope_device_")]

    assert len(mine) == 3
    assert not any(family.samples for family in mine)


def test_the_roofline_rates_use_the_devices_clock() -> None:
    """The host launches work and goes on, so its own stamps do not measure the device."""
    asked_only = step(0, 0, 10, [decode(1)], sample_ns=1 * MS, device=DeviceTimes(8 * MS))
    _, work = FLOOR.work_of(asked_only, since_ns=0)

    assert work.forward_ns == 8 * MS
