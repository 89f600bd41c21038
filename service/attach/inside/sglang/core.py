"""The hooks of SGLang's scheduler process. Each calls SGLang's own function with the arguments that
it got, and then the observer, whose methods raise nothing.

They are put in with SGLang's `HookRegistry`, as its plugins do. A process has one scheduler; it is
observed from the moment when it enters its loop, if it is one that this adapter can follow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.attach.inside.sglang.observer import Observer
from service.attach.inside.sglang.seams import (
    BATCH,
    CORE_METHODS,
    ENGINE,
    GRAMMARS,
    RESULTS,
    SCHEDULER,
    check_methods,
)
from service.attach.inside.transport import Listing, Sender, report_not_observed
from service.attach.inside.versions import UnknownEngine
from service.attach.wire import Role

Original = Callable[..., Any]
_watch: Observer | None = None


def register(path: Path, version: str) -> None:
    """Raises UnknownEngine if SGLang is not as it is expected to be."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    check_methods(CORE_METHODS)

    def run_event_loop(original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
        _begin(scheduler, path, version)
        try:
            return original(scheduler, *args, **named)
        finally:
            if _watch is not None:
                _watch.close()

    hooks: dict[str, Original] = {f"{SCHEDULER}.Scheduler.run_event_loop": run_event_loop, **_HOOKS}
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def _begin(scheduler: Any, path: Path, version: str) -> None:
    global _watch
    index = 0
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if parallel.tp_rank != 0 or parallel.pp_rank != 0:
            return  # the first rank decides the same, and is observed
        index = int(parallel.dp_rank or 0)
        _check_kind(scheduler, parallel)

        def make_sender(listing: Callable[[], Listing], is_resting: Callable[[], bool]) -> Sender:
            return Sender(
                Role.ENGINE_CORE,
                ENGINE,
                version,
                index,
                path=path,
                listing=listing,
                is_resting=is_resting,
            )

        watch = Observer(scheduler, make_sender)
        watch.begin(version)
        _watch = watch
    except Exception as error:
        report_not_observed(
            Role.ENGINE_CORE,
            ENGINE,
            version,
            path=path,
            hook="run_event_loop",
            error=error,
            index=index,
        )


def _check_kind(scheduler: Any, parallel: Any) -> None:
    """Schedulers with other loops, whose plans and outcomes do not pass through the hooks."""
    if parallel.pp_size > 1:
        raise UnknownEngine("pipeline parallelism (--pp-size) has a loop of its own")
    if scheduler.disaggregation_mode.value not in (None, "null"):
        raise UnknownEngine("--disaggregation-mode has a loop of its own")
    if scheduler.dllm_config is not None:
        raise UnknownEngine("a diffusion language model has no steps of one token")
    if scheduler.enable_pdmux:
        raise UnknownEngine("--enable-pdmux has a loop of its own")


def _input(original: Original, scheduler: Any, recv_reqs: Any, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is not None and watch.is_on:
        watch.received(recv_reqs)
    return original(scheduler, recv_reqs, *args, **named)


def _plan(original: Original, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is None or not watch.is_on:
        return original(*args, **named)
    begin_ns = watch.now_ns()
    plan = original(*args, **named)
    watch.planned(begin_ns, plan)
    return plan


def _run(original: Original, scheduler: Any, batch: Any, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is None or not watch.is_on:
        return original(scheduler, batch, *args, **named)
    watch.launching(batch)
    result = original(scheduler, batch, *args, **named)
    watch.launched(batch, result)
    return result


def _process(
    original: Original, scheduler: Any, batch: Any, result: Any, *args: Any, **named: Any
) -> Any:
    watch = _watch
    if watch is None or not watch.is_on:
        return original(scheduler, batch, result, *args, **named)
    entered_ns = watch.now_ns()
    watch.processing(result)
    answer = original(scheduler, batch, result, *args, **named)
    watch.processed(entered_ns)
    return answer


def _add(original: Original, scheduler: Any, req: Any, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is None or not watch.is_on:
        return original(scheduler, req, *args, **named)
    at_ns = watch.now_ns()
    watch.adding(req)
    answer = original(scheduler, req, *args, **named)
    watch.added(at_ns, req)
    return answer


def _release(original: Original, scheduler: Any, req: Any, *args: Any, **named: Any) -> Any:
    answer = original(scheduler, req, *args, **named)
    watch = _watch
    if watch is not None and watch.is_on:
        watch.released(req)
    return answer


def _abort(original: Original, scheduler: Any, recv_req: Any, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is None or not watch.is_on:
        return original(scheduler, recv_req, *args, **named)
    watch.aborting(recv_req)
    answer = original(scheduler, recv_req, *args, **named)
    watch.aborted()
    return answer


def _retract(original: Original, *args: Any, **named: Any) -> Any:
    outcome = original(*args, **named)
    watch = _watch
    if watch is not None and watch.is_on:
        watch.retracted(outcome)
    return outcome


def _grammar(original: Original, manager: Any, req: Any, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is None or not watch.is_on:
        return original(manager, req, *args, **named)
    at_ns = watch.now_ns()
    must_wait = original(manager, req, *args, **named)
    if must_wait:
        watch.awaits_grammar(at_ns, req)
    return must_wait


def _on_host(original: Original, *args: Any, **named: Any) -> Any:
    watch = _watch
    if watch is not None and watch.is_on:
        watch.collected()
    return original(*args, **named)


_HOOKS: dict[str, Original] = {
    f"{SCHEDULER}.Scheduler.process_input_requests": _input,
    f"{SCHEDULER}.Scheduler.get_next_batch_to_run": _plan,
    f"{SCHEDULER}.Scheduler.run_batch": _run,
    f"{SCHEDULER}.Scheduler.process_batch_result": _process,
    f"{SCHEDULER}.Scheduler._add_request_to_queue": _add,
    f"{SCHEDULER}.Scheduler._release_aborted_request": _release,
    f"{SCHEDULER}.Scheduler.abort_request": _abort,
    f"{BATCH}.ScheduleBatch.retract_decode": _retract,
    f"{GRAMMARS}.GrammarManager.process_req_with_grammar": _grammar,
    f"{RESULTS}.SchedulerBatchResultProcessor._normalize_decode_outputs": _on_host,
    f"{RESULTS}.SchedulerBatchResultProcessor.move_logprobs_to_cpu": _on_host,
}
