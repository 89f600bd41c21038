"""When a step ran on the device, by the device's own clock."""

from __future__ import annotations

import msgspec


class DeviceTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step by the device's own clock: `busy_ns` from its first operation to its last, and
    `bubble_ns` before that in which the device was idle since the step before (None for the first
    step and for one after idling). Some steps also have `attention_ns`, `matrices_ns` (with what
    lies between them) and `sampling_ns`; in the others these are None."""

    busy_ns: int
    bubble_ns: int | None = None
    attention_ns: int | None = None
    matrices_ns: int | None = None
    sampling_ns: int | None = None
