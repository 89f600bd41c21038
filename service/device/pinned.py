"""Numbers of the host on their way to a device, without waiting for it.

A copy from memory that is not pinned waits for all that the device was asked for before: what is
asked for early would be asked for late.
"""

from __future__ import annotations

from typing import Any

import torch


def on_device(values: list[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of `values`, nested as they are, in the order of the device's work."""
    found = torch.tensor(values, dtype=dtype)
    if device.type == "cuda" and found.numel():
        found = found.pin_memory()
    return found.to(device, non_blocking=True)
