"""Observes vLLM's engine core process.

`SchedulerConfig.get_scheduler_cls` is wrapped: whatever class it returns, vLLM gets a subclass of
it, made here, that calls the same methods with the same arguments and tells an observer what came
of them. So the configured class stays the one that decides, and asynchronous scheduling stays on.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

from service.attach.inside.transport import report_not_observed
from service.attach.inside.versions import UnknownEngine, check_seams
from service.attach.inside.vllm_core.hooks import Hooks, hook_core
from service.attach.wire import Role

CONFIG_SEAMS = {"get_scheduler_cls": ()}
SCHEDULER_SEAMS = {
    "schedule": (),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "add_request": ("request",),
    "finish_requests": ("request_ids", "finished_status"),
    "_preempt_request": ("request",),
    "_free_request": ("request",),
    "shutdown": (),
}
CORE_SEAMS = {"preprocess_add_request": ("request",)}
_MARK = "_phasescope_wrapped"


def register(path: Path, version: str, reason_against: str | None) -> None:
    """Wrap the choice of the scheduler's class. `reason_against`: why nothing may be observed; it
    is said once there is an engine core. Raises UnknownEngine if there is nothing to wrap."""
    from vllm.config.scheduler import SchedulerConfig

    check_seams(SchedulerConfig, CONFIG_SEAMS)
    choose = SchedulerConfig.get_scheduler_cls
    if getattr(choose, _MARK, False):
        return

    @wraps(choose)
    def get_scheduler_cls(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = choose(self, *args, **kwargs)
        try:
            if reason_against is not None:
                raise UnknownEngine(reason_against)
            return observed(chosen, path, version)
        except Exception as error:
            report_not_observed(
                Role.ENGINE_CORE, "vllm", version, path=path, hook="get_scheduler_cls", error=error
            )
            return chosen

    setattr(get_scheduler_cls, _MARK, True)
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


def observed(base: type, path: Path, version: str) -> type:
    """A subclass of the scheduler class `base` that is observed. Raises UnknownEngine."""
    from vllm.v1.engine.core import EngineCore

    if getattr(base, _MARK, False):
        return base
    check_seams(base, SCHEDULER_SEAMS)
    check_seams(EngineCore, CORE_SEAMS)
    if not getattr(EngineCore.preprocess_add_request, _MARK, False):
        hooked = hook_core(EngineCore.preprocess_add_request)
        setattr(hooked, _MARK, True)
        EngineCore.preprocess_add_request = hooked
    members = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "phasescope_path": path,
        "phasescope_version": version,
        _MARK: True,
    }
    return type(base.__name__, (Hooks, base), members)
