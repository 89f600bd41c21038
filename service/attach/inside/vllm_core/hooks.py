"""The methods of vLLM's scheduler and engine core that are observed.

Each calls vLLM's own method with the arguments that it got, and then the observer, whose methods
raise nothing. Only what vLLM's method itself raises leaves a hook.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from service.attach.inside.vllm_core.observer import Observer


class Hooks:
    """Comes before a scheduler class in the bases of the class that vLLM uses."""

    phasescope_path: Path
    phasescope_version: str
    phasescope: Observer | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.phasescope = Observer.of(self, self.phasescope_path, self.phasescope_version)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        watch = self.phasescope
        if watch is None or not watch.is_on:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        begin_ns = watch.now_ns()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        watch.planned(begin_ns, output, args, kwargs)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        watch = self.phasescope
        if watch is None or not watch.is_on:
            return super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        watch.collected(args, kwargs)
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        watch.committed(outputs)
        return outputs

    def add_request(self, *args: Any, **kwargs: Any) -> Any:
        watch = self.phasescope
        if watch is None or not watch.is_on:
            return super().add_request(*args, **kwargs)  # type: ignore[misc]
        at_ns = watch.now_ns()
        result = super().add_request(*args, **kwargs)  # type: ignore[misc]
        watch.added(at_ns, args, kwargs)
        return result

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        watch = self.phasescope
        if watch is None or not watch.is_on:
            return super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        watch.finishing(args, kwargs)
        result = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        watch.finished()
        return result

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        watch = self.phasescope
        if watch is not None and watch.is_on:
            watch.preempting(args, kwargs)
        return super()._preempt_request(*args, **kwargs)  # type: ignore[misc]

    def _free_request(self, *args: Any, **kwargs: Any) -> Any:
        watch = self.phasescope
        if watch is not None and watch.is_on:
            watch.ended(args, kwargs)
        return super()._free_request(*args, **kwargs)  # type: ignore[misc]

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        result = super().shutdown(*args, **kwargs)  # type: ignore[misc]
        watch = self.phasescope
        if watch is not None:
            watch.close()
        return result


def hook_core(original: Callable[..., Any]) -> Callable[..., Any]:
    """`EngineCore.preprocess_add_request`, which runs on the thread that receives requests."""

    @wraps(original)
    def preprocess_add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = getattr(getattr(self, "scheduler", None), "phasescope", None)
        if watch is not None and watch.is_on:
            watch.received(args, kwargs)
        return original(self, *args, **kwargs)

    return preprocess_add_request
