"""What an error of the device means: told once, where it happens, and never guessed afterwards."""

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


def told_failure(error: BaseException) -> StepFailure | None:
    """What the error itself says; None for one that may be anybody's."""
    if isinstance(error, DeviceFailure):
        return error.kind
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _NO_MEMORY.search(str(error)):
        return StepFailure.OUT_OF_MEMORY
    return None


def failure_of(error: BaseException) -> StepFailure:
    """Of an error from within the computation of a step."""
    told = told_failure(error)
    if told is not None:
        return told
    return StepFailure.BAD_INPUT if isinstance(error, IndexError) else StepFailure.KERNEL_ERROR


def step_failed(step_id: int, error: Exception) -> StepFailed:
    """What `collect` is to raise."""
    return StepFailed.of(step_id, error, failure_of(error))
