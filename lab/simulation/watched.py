"""A simulated executor that says what it is given."""

from __future__ import annotations

from collections.abc import Callable

from lab.simulation.sim_executor import SimExecutor
from service.engine.executor import Adapter
from service.engine.plan import Plan, StepOutcome


class Watched:
    """An executor that calls `on_launch` with every plan, and `on_collect` after it is done."""

    def __init__(
        self,
        inner: SimExecutor,
        on_launch: Callable[[Plan], None],
        on_collect: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._on_launch, self._on_collect = on_launch, on_collect
        self.block_tokens = inner.block_tokens
        self.blocks_total = inner.blocks_total

    def launch(self, plan: Plan) -> None:
        self._on_launch(plan)
        self._inner.launch(plan)

    def collect(self) -> StepOutcome:
        self._on_collect()
        return self._inner.collect()

    def place_adapter(self, number: int, weights: Adapter) -> int:
        return self._inner.place_adapter(number, weights)

    def drop_adapter(self, number: int) -> int:
        return self._inner.drop_adapter(number)
