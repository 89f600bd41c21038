"""When a device that is asked long before it computes began and ended each step, on the host's
clock: from marks by its own clock and from causality alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.device.cuda.device_times import DeviceClock, StepTimes
from service.device.cuda.runtime import Graph, Mark
from telemetry.facts.clock import ManualClock

MS = 1_000_000
FORWARD_NS, SAMPLING_NS = 3 * MS, MS // 5


class Device:
    """Computes what it was asked for in order, one thing after the other. Its clock goes faster
    than the host's by `drift_ppm`; waiting for a mark moves the host's clock."""

    device = torch.device("cpu")

    def __init__(self, host: ManualClock, drift_ppm: int = 0) -> None:
        self.host, self.drift_ppm = host, drift_ppm
        self.free_ns = 0  # when all that was asked for is done

    def work(self, ns: int) -> None:
        self.free_ns = max(self.free_ns, self.host.now_ns()) + ns

    def mark(self, in_graph: bool = False) -> Mark:
        del in_graph
        return _Mark(self)

    def capture(self, run: Any) -> Graph:
        raise NotImplementedError

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise NotImplementedError

    def release_unused(self) -> None:
        raise NotImplementedError


class _Mark:
    def __init__(self, device: Device) -> None:
        self._device, self._at_ns = device, 0

    def record(self) -> None:
        device = self._device
        self._at_ns = max(device.free_ns, device.host.now_ns())

    def wait(self) -> None:
        host = self._device.host
        host.advance(max(0, self._at_ns - host.now_ns()))

    def is_reached(self) -> bool:
        return self._at_ns <= self._device.host.now_ns()

    def after_ns(self, earlier: Mark) -> int:
        assert isinstance(earlier, _Mark)
        passed_ns = self._at_ns - earlier._at_ns
        return passed_ns + passed_ns * self._device.drift_ppm // 1_000_000


class Asked:
    """A step that was asked for; `truth` is when it began, had its logits and ended."""

    def __init__(self, clock: DeviceClock, device: Device, forward_ns: int = FORWARD_NS) -> None:
        self.asked_ns = device.host.now_ns()
        self.span = clock.begin()
        begun_ns = max(device.free_ns, device.host.now_ns())
        device.work(forward_ns)
        self.span.logits.record()
        device.work(SAMPLING_NS)
        self.span.done.record()
        self.truth = (begun_ns, begun_ns + forward_ns)

    def read(self, clock: DeviceClock) -> StepTimes:
        return clock.read(self.span, self.asked_ns)


def test_a_step_that_was_asked_for_early_begins_when_the_device_begins_it() -> None:
    """Two steps in flight: the host is done with asking for the second long before the first has
    ended, and that is no time in which the model ran."""
    host = ManualClock(1_000 * MS)
    device = Device(host)
    clock = DeviceClock(device, host)
    first, second = Asked(clock, device), Asked(clock, device)

    one, two = first.read(clock), second.read(clock)

    assert (one.forward_ns, one.sample_ns) == first.truth
    assert (two.forward_ns, two.sample_ns) == second.truth
    assert two.sample_ns - two.forward_ns == FORWARD_NS
    assert two.device.busy_ns == FORWARD_NS + SAMPLING_NS


Turns = st.lists(st.tuples(st.integers(0, 5 * MS), st.integers(1, 8 * MS)), max_size=60)


@given(Turns, st.integers(-200, 200))
def test_stamps_never_break_causality_and_lengths_are_the_devices(
    turns: list[tuple[int, int]], drift_ppm: int
) -> None:
    """Whatever the host does between asking and reading, and however its clock drifts: nothing
    begins before it was asked for, nothing ends after the host saw its end, lengths are the
    device's, and a step that the host waited for is where it was."""
    host = ManualClock(1_000 * MS)
    device = Device(host, drift_ppm)
    clock = DeviceClock(device, host)
    flying: list[Asked] = []
    for pause_ns, forward_ns in turns:
        flying.append(Asked(clock, device, forward_ns))
        host.advance(pause_ns)
        if len(flying) < 2:
            continue
        step = flying.pop(0)
        waits = not step.span.done.is_reached()
        found = step.read(clock)
        begun_ns, logits_ns = step.truth
        off_ns = 10 + (logits_ns - begun_ns + SAMPLING_NS) // 1_000
        assert abs(found.sample_ns - found.forward_ns - (logits_ns - begun_ns)) <= off_ns
        assert step.asked_ns <= found.forward_ns + off_ns
        assert found.forward_ns + found.device.busy_ns <= host.now_ns() + off_ns
        if waits:
            assert abs(found.forward_ns - begun_ns) <= off_ns


def test_clocks_that_drift_apart_for_an_hour_stay_together() -> None:
    """A host that is always a little late never sees an end as it happens."""
    host = ManualClock(1_000 * MS)
    device = Device(host, drift_ppm=-50)
    clock = DeviceClock(device, host)
    worst_ns = 0
    for number in range(20_000):
        step = Asked(clock, device, 200 * MS)
        # one step in a hundred is waited for
        host.advance(0 if number % 100 == 0 else 201 * MS)
        worst_ns = max(worst_ns, abs(step.read(clock).forward_ns - step.truth[0]))

    assert worst_ns < 3 * MS, "of 200 ms each"


def test_blocks_that_are_copied_for_a_step_are_no_part_of_the_model() -> None:
    host = ManualClock(1_000 * MS)
    device = Device(host)
    clock = DeviceClock(device, host)
    asked_ns, span = host.now_ns(), clock.begin()
    device.work(20 * MS)
    clock.copied(span)
    device.work(FORWARD_NS)
    span.logits.record()
    span.done.record()
    found = clock.read(span, asked_ns)

    assert found.sample_ns - found.forward_ns == FORWARD_NS
    assert found.device.busy_ns == 20 * MS + FORWARD_NS
    step = Asked(clock, device)
    assert step.read(clock).forward_ns == step.truth[0], "the span is used again without copies"


def test_after_a_step_that_failed_the_next_ones_are_placed_anew() -> None:
    host = ManualClock(1_000 * MS)
    device = Device(host)
    clock = DeviceClock(device, host)
    Asked(clock, device).read(clock)
    clock.skip()
    host.advance(50 * MS)
    step = Asked(clock, device)

    found = step.read(clock)

    assert (found.forward_ns, found.sample_ns) == step.truth
    assert found.device.bubble_ns is None


@pytest.mark.parametrize("late_ns", [0, 7 * MS])
def test_a_host_that_reads_late_keeps_what_it_knew_of_the_devices_clock(late_ns: int) -> None:
    host = ManualClock(1_000 * MS)
    device = Device(host)
    clock = DeviceClock(device, host)
    Asked(clock, device).read(clock)
    step = Asked(clock, device)
    host.advance(late_ns)

    assert step.read(clock).forward_ns == step.truth[0]
