"""The interface between the pure core and what computes a plan.

`launch` and `collect` are two calls so that the next step can be planned while this one
runs. Implementations: `service.device.torch_executor` on hardware; the simulator's on a
cost model.
"""

from __future__ import annotations

import re
from typing import Protocol

from service.engine.plan import Plan, StepOutcome
from telemetry.facts.reasons import StepFailure

_DETAIL_CHARACTERS = 160


class DeviceFailure(Exception):
    """A step or a start failed on the device; `kind` says why."""

    kind = StepFailure.KERNEL_ERROR


class StepFailed(DeviceFailure):
    """The step could not be computed (out of memory, a kernel fault that was survived).

    The sequences in the step fail; the engine goes on. `detail` is one line for a log, without
    digits, because a number may be a token id.
    """

    def __init__(
        self, message: str, kind: StepFailure = StepFailure.KERNEL_ERROR, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail

    @classmethod
    def of(cls, step_id: int, error: Exception, kind: StepFailure) -> StepFailed:
        """From an exception: the first line of its message, with digits replaced in `detail`."""
        line = next(iter(str(error).splitlines()), "")
        detail = re.sub(r"\d+", "#", f"{type(error).__name__}: {line}")[:_DETAIL_CHARACTERS]
        return cls(f"step {step_id}: {line or type(error).__name__}", kind, detail)


class Adapter(Protocol):
    """What the engine knows of a LoRA adapter that was read; the rest is the device's."""

    @property
    def bytes(self) -> int:
        """Of its numbers as the device holds them, before padding."""
        ...

    @property
    def rank(self) -> int:
        """The largest of its modules."""
        ...

    @property
    def digest(self) -> str:
        """The same for the same numbers in the same places, and for no others."""
        ...


class Executor(Protocol):
    """Runs plans in the order in which they were launched.

    `launch` reads all it needs from the plan before it returns: the scheduler reuses the
    plan's block tables afterwards. `collect` waits for the oldest launched plan that has
    not been collected; it raises `StepFailed` if that plan could not be computed.
    """

    @property
    def block_tokens(self) -> int:
        """Tokens in one block of the paged cache; a property of the attention back end."""
        ...

    @property
    def blocks_total(self) -> int:
        """Blocks that the cache holds."""
        ...

    def launch(self, plan: Plan) -> None:
        """Start a step; need not wait for it."""
        ...

    def collect(self) -> StepOutcome:
        """Wait for the oldest launched step. Raises StepFailed."""
        ...

    def place_adapter(self, number: int, weights: Adapter) -> int:
        """Make an adapter ready for plans whose `SlotStart.adapter` is `number`, which is above 0
        and new. Returns the bytes that all placed adapters now take. Raises DeviceFailure when
        there is no room, and then nothing has changed."""
        ...

    def drop_adapter(self, number: int) -> int:
        """Free one. No slot that goes on, and no launched step that was not collected, has it.
        Returns the bytes that are left in use."""
        ...


class CountedAdapters:
    """The adapter part of an `Executor` that computes nothing."""

    def __init__(self) -> None:
        self._adapter_bytes: dict[int, int] = {}

    def place_adapter(self, number: int, weights: Adapter) -> int:
        assert number > 0, number
        assert number not in self._adapter_bytes, number
        self._adapter_bytes[number] = weights.bytes
        return sum(self._adapter_bytes.values())

    def drop_adapter(self, number: int) -> int:
        del self._adapter_bytes[number]
        return sum(self._adapter_bytes.values())
