"""Classifies errors of the device, once, where they are raised."""

from __future__ import annotations

import re

import torch

from service.engine.executor import DeviceFailure, StepFailed
from telemetry.facts.reasons import StepFailure

# As the allocators of torch, CUDA, cuBLAS, C++ and OpenVINO put it.
_NO_MEMORY = re.compile(
    r"out of memory|not enough memory|can(?:'t|not| not) allocate|(?:failed|unable) to allocate"
    r"|bad[_ ]alloc|alloc_failed",
    re.IGNORECASE,
)


def stated_failure(error: BaseException) -> StepFailure | None:
    """The kind that the error itself states; None where it could come from anywhere."""
    if isinstance(error, DeviceFailure):
        return error.kind
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _NO_MEMORY.search(str(error)):
        return StepFailure.OUT_OF_MEMORY
    return None


def failure_of(error: BaseException) -> StepFailure:
    """Of an error from within the computation of a step."""
    stated = stated_failure(error)
    if stated is not None:
        return stated
    return StepFailure.BAD_INPUT if isinstance(error, IndexError) else StepFailure.KERNEL_ERROR


def step_failed(step_id: int, error: Exception) -> StepFailed:
    """What `collect` is to raise."""
    return StepFailed.of(step_id, error, failure_of(error))
