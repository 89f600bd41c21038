"""Samples the GPUs through NVML: each quantity has a value, or the reason why it has none.

No NVML mode is ever set. Memory-controller utilization is the share of time in which memory was
busy, not a bandwidth; bandwidth comes from GPM.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field

import pynvml

from telemetry.facts.base import Unavailable, Value
from telemetry.facts.clock import Clock
from telemetry.facts.host_records import GpuFound, GpuSampled
from telemetry.facts.recorder import Lane
from telemetry.host.gpu_device import (
    Device,
    Values,
    clock_event_names,
    driver_version,
    name_of,
    read_device,
    visible_devices,
)
from telemetry.host.gpu_events import XidWatch
from telemetry.host.gpu_gpm import Gpm
from telemetry.host.gpu_peaks import peak_bytes_per_s, peak_flop_per_s

log = logging.getLogger("phasescope.telemetry")

_INTERVAL_S = 0.5
_NONE = "unavailable: the driver shows no GPU, or CUDA_VISIBLE_DEVICES hides it"
_COUNTERS = {
    "pcie_sent_bytes": "pcie_sent_bytes_per_s",
    "pcie_received_bytes": "pcie_received_bytes_per_s",
}


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU by quantity; `status` is `ok`, or why there is no reading."""

    status: str
    name: str | None = None
    values: Values = field(default_factory=dict)
    gpu: str | None = None

    def number(self, quantity: str) -> float | None:
        """The value of a quantity; None where there is none."""
        value = self.values.get(quantity)
        return None if value is None or isinstance(value, Unavailable) else value

    def as_dict(self) -> dict[str, float | str]:
        """For the Snapshot: each quantity as a number, or as the reason why it has none."""
        labels = (("status", self.status), ("name", self.name), ("gpu", self.gpu))
        found: dict[str, float | str] = {n: text for n, text in labels if text is not None}
        for quantity, value in self.values.items():
            found[quantity] = (
                f"unavailable: {value.why}" if isinstance(value, Unavailable) else value
            )
        events = self.number("clock_events")
        if events is not None:
            found["clock_event_names"] = ", ".join(clock_event_names(int(events))) or "none"
        return found


class _Reader:
    """One device and its state between two samples."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = name_of(device)
        self._gpm = Gpm(device)
        self._last: tuple[int, Values] | None = None

    def sample(self, now_ns: int) -> GpuSample:
        values = read_device(self.device)
        for counter, rate in _COUNTERS.items():
            values[rate] = self._rate(counter, values[counter], now_ns)
        values.update(self._gpm.read(now_ns))
        self._last = (now_ns, values)
        return GpuSample("ok", self.name, values, self.device.gpu)

    def close(self) -> None:
        self._gpm.close()

    def _rate(self, counter: str, value: Value, now_ns: int) -> Value:
        if isinstance(value, Unavailable):
            return value
        if self._last is None:
            return Unavailable("the first of two readings was just taken")
        last_ns, last_values = self._last
        last = last_values[counter]
        if isinstance(last, Unavailable) or value < last or now_ns <= last_ns:
            return Unavailable("the counter began anew")
        return (value - last) / (now_ns - last_ns) * 1e9


class GpuSampler:
    """Samples all GPUs on its own thread; without a GPU it only reports the reason.

    `lane` takes GpuFound and GpuSampled, `xid_lane` GpuXid; neither may have another writer.
    """

    def __init__(
        self, clock: Clock, lane: Lane, xid_lane: Lane, interval_s: float = _INTERVAL_S
    ) -> None:
        self._clock = clock
        self._lane = lane
        self._xid_lane = xid_lane
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._readers: list[_Reader] = []
        self._xids: XidWatch | None = None
        self._open = False
        self._latest: tuple[GpuSample, ...] = (GpuSample("unavailable: not started"),)

    def latest(self) -> GpuSample:
        """The first GPU's last sample."""
        return self._latest[0]

    def all_latest(self) -> tuple[GpuSample, ...]:
        """The last sample of each GPU; without a GPU, one with the reason."""
        return self._latest

    @property
    def xid_status(self) -> str:
        return "unavailable: no GPU" if self._xids is None else self._xids.status

    def xid_counts(self) -> dict[tuple[str, int | None], int]:
        """Errors so far by GPU and number."""
        return {} if self._xids is None else dict(self._xids.counts)

    def start(self) -> None:
        """Open NVML and begin to sample; without a GPU nothing is started."""
        try:
            pynvml.nvmlInit()
            self._open = True
            devices = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        except pynvml.NVMLError as error:
            self._latest = (GpuSample(f"unavailable: {error}"),)
            return
        if not devices:
            self._latest = (GpuSample(_NONE),)
            return
        self._readers = [_Reader(device) for device in devices]
        self._announce()
        self._xids = XidWatch(devices, self._xid_lane, self._clock)
        self._xids.start()
        self.sample()
        self._thread = threading.Thread(target=self._run, name="phasescope-gpu", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._xids is not None:
            self._xids.stop()
        for reader in self._readers:
            reader.close()
        self._readers = []
        if self._open:
            self._open = False
            pynvml.nvmlShutdown()

    def sample(self) -> tuple[GpuSample, ...]:
        """Read everything once."""
        now_ns = self._clock.now_ns()
        found = tuple(reader.sample(now_ns) for reader in self._readers)
        for sample in found:
            self._lane.append(_fact(sample, now_ns))
        self._latest = found
        return found

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.sample()
            except (
                Exception
            ) as error:  # an error of the driver must not end the service's telemetry
                self._latest = (GpuSample(f"unavailable: {type(error).__name__}: {error}"),)
                log.exception("the GPU is not sampled any more")
                return

    def _announce(self) -> None:
        driver = driver_version()
        for reader in self._readers:
            self._lane.append(
                GpuFound(
                    at_ns=self._clock.now_ns(),
                    gpu=reader.device.gpu,
                    name=reader.name or "?",
                    driver=driver,
                    peak_bytes_per_s=peak_bytes_per_s(reader.device),
                    peak_flop_per_s=peak_flop_per_s(reader.device),
                )
            )


def _fact(sample: GpuSample, now_ns: int) -> GpuSampled:
    def whole(quantity: str) -> int | None:
        value = sample.number(quantity)
        return None if value is None else int(value)

    return GpuSampled(
        at_ns=now_ns,
        gpu=sample.gpu or "?",
        memory_used_bytes=whole("memory_used_bytes"),
        dram_bandwidth_pct=sample.number("dram_bandwidth_pct"),
        sm_busy_pct=sample.number("sm_busy_pct"),
        tensor_busy_pct=sample.number("tensor_busy_pct"),
        gpu_busy_pct=sample.number("gpu_busy_pct"),
        memory_busy_pct=sample.number("memory_controller_busy_pct"),
        sm_clock_mhz=whole("sm_clock_mhz"),
        memory_clock_mhz=whole("memory_clock_mhz"),
        clock_events=whole("clock_events"),
        power_w=sample.number("power_w"),
        energy_j=sample.number("energy_j"),
        temperature_c=sample.number("temperature_c"),
        pcie_sent_bytes_per_s=sample.number("pcie_sent_bytes_per_s"),
        pcie_received_bytes_per_s=sample.number("pcie_received_bytes_per_s"),
        ecc_uncorrected=whole("ecc_uncorrected"),
    )
