"""The seam between the pure core and whatever computes.

`launch` and `collect` are two calls so that the next step can be planned while this one
runs. Implementations: `service.device.torch_executor` on hardware; the simulator's on a
cost model.
"""

from __future__ import annotations

from typing import Protocol

from service.engine.plan import Plan, StepOutcome


class StepFailed(Exception):
    """The step could not be computed (out of memory, a kernel fault that was survived).

    The sequences in the step fail; the engine goes on.
    """

    @classmethod
    def of(cls, step_id: int, error: Exception) -> StepFailed:
        """In one line."""
        lines = str(error).splitlines()
        return cls(f"step {step_id}: {lines[0] if lines else type(error).__name__}")


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

    def launch(self, plan: Plan) -> None: ...

    def collect(self) -> StepOutcome: ...
