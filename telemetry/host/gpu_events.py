"""XID errors of the GPUs: a thread that waits for events of the driver.

The wait is bounded, so the thread ends within WAIT_MS after `stop`.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Sequence

import pynvml

from telemetry.facts.clock import Clock
from telemetry.facts.host_records import GpuXid
from telemetry.facts.recorder import Lane
from telemetry.host.gpu_device import Device, Handle

WAIT_MS = 500
_KINDS = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError


class XidWatch:
    """Writes a GpuXid for each event; the lane must have no other writer.

    `status` is "ok", or why there are no events. `counts` are by (gpu, xid).
    """

    def __init__(self, devices: Sequence[Device], lane: Lane, clock: Clock) -> None:
        self.status = "unavailable: not started"
        self.counts: Counter[tuple[str, int | None]] = Counter()
        self._names = {_address(device.parent): device.gpu.split(":")[0] for device in devices}
        self._parents = {_address(device.parent): device.parent for device in devices}
        self._lane = lane
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._set: Handle | None = None

    def start(self) -> None:
        """Register for events and wait for them; nothing is started if no GPU reports events."""
        try:
            self._set = pynvml.nvmlEventSetCreate()
            for parent in self._parents.values():
                pynvml.nvmlDeviceRegisterEvents(parent, _KINDS, self._set)
        except pynvml.NVMLError as error:
            self.status = f"unavailable: {error}"
            self._free()
            return
        self.status = "ok"
        self._thread = threading.Thread(target=self._run, name="phasescope-xid", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread within WAIT_MS. Call it before NVML is shut down."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._free()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, WAIT_MS)
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError as error:  # the GPU or the driver is lost
                self.status = f"unavailable: {error}"
                return
            self._note(event)

    def _note(self, event: Handle) -> None:
        gpu = self._names.get(_address(event.device), "?")
        is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
        xid = int(event.eventData) if is_xid else None
        self.counts[gpu, xid] += 1
        self._lane.append(GpuXid(self._clock.now_ns(), gpu, xid))

    def _free(self) -> None:
        if self._set is not None:
            pynvml.nvmlEventSetFree(self._set)
            self._set = None


def _address(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
