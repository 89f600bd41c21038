"""Torch's profiler around some steps of an executor.

Between profiles nothing of this is in the way: the loop calls its executor itself, and a
`StepProfiler` stands before it only while one is being recorded. Shapes, stacks and memory are
not asked for, so names and times are all that a trace holds of a step.

It is the profiler behind `torch.profiler.profile`, which for its own start imports the compiler:
a second, and 140 MB, that nothing here needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch._C._autograd import _add_metadata_json
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from service.device.torch_executor import DeviceExecutor
from service.engine.executor import Adapter
from service.engine.plan import Plan, StepOutcome

METADATA_KEY = "phasescope"


class StepProfiler:
    """Implements `service.engine.executor.Executor` around another one.

    The first `steps` plans that are launched through it are marked in the trace, as `step ID
    launch` and `step ID collect`; `in_flight` steps were launched before it came. One thread
    calls it, from `start` to `stop`. `step_ids` are those of them that have been collected.
    """

    def __init__(self, executor: DeviceExecutor, steps: int, in_flight: int) -> None:
        assert steps > 0, steps
        self.step_ids: list[int] = []
        self._executor = executor
        self._steps = steps
        self._to_mark = steps
        self._launched: deque[int | None] = deque([None] * in_flight)
        self.sees_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        # a deeper pipeline computes on a thread of its own
        everywhere = _ExperimentalConfig(profile_all_threads=True)
        self._profile: Any = profile(
            use_kineto=True,
            use_device="cuda" if self.sees_gpu else None,
            experimental_config=everywhere,
        )

    @property
    def block_tokens(self) -> int:
        return self._executor.block_tokens

    @property
    def blocks_total(self) -> int:
        return self._executor.blocks_total

    @property
    def is_full(self) -> bool:
        """All steps that were asked for have been collected."""
        return len(self.step_ids) == self._steps

    def start(self) -> None:
        """Record from now on. Raises RuntimeError when torch cannot."""
        self._executor.mark_steps(True)
        try:
            self._profile.__enter__()
        except BaseException:
            self._executor.mark_steps(False)
            raise

    def stop(self, path: Path | None, metadata: Mapping[str, Any]) -> None:
        """End, and write Chrome's trace format to `path` unless that is None.

        `metadata` is found under `METADATA_KEY` of the file. Raises RuntimeError and OSError.
        """
        self._executor.mark_steps(False)
        if path is not None:
            _add_metadata_json(METADATA_KEY, msgspec.json.encode(metadata).decode())
        self._profile.__exit__(None, None, None)
        if path is None:
            return
        self._profile.export_chrome_trace(str(path))
        if not path.exists():  # torch logs that and goes on
            raise OSError(f"no trace was written to {path.parent}")

    def launch(self, plan: Plan) -> None:
        if not self._to_mark:
            self._launched.append(None)
            self._executor.launch(plan)
            return
        self._to_mark -= 1
        self._launched.append(plan.step_id)
        with record_function(f"step {plan.step_id} launch"):
            self._executor.launch(plan)

    def collect(self) -> StepOutcome:
        """The oldest step's outcome; one that failed counts. Raises StepFailed."""
        step_id = self._launched.popleft()
        if step_id is None:
            return self._executor.collect()
        try:
            with record_function(f"step {step_id} collect"):
                return self._executor.collect()
        finally:
            self.step_ids.append(step_id)

    def place_adapter(self, number: int, weights: Adapter) -> int:
        return self._executor.place_adapter(number, weights)

    def drop_adapter(self, number: int) -> int:
        return self._executor.drop_adapter(number)
