"""The hooks in the classes of vLLM's front end: each calls the original and looks on."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from service.attach.inside.front_end.front import Front, current
from service.attach.inside.front_end.vllm_read import end_reason, parameters, prompt_tokens
from service.attach.inside.guard import Guard, where
from telemetry.facts.reasons import EndReason

Wrap = Callable[[Front, Guard, Callable[..., Any]], Callable[..., Any]]
_DEFAULTS = "_phasescope_defaults"


def install(front: Front) -> None:
    """Put in every hook that fits; the sidecar hears of the others."""
    for module, owner, method, expected, wrap in HOOKS:
        name = f"{owner}.{method}"
        try:
            home = getattr(importlib.import_module(module), owner)
            static = inspect.getattr_static(home, method)
            original = static.__func__ if isinstance(static, staticmethod) else static
            found = tuple(inspect.signature(original).parameters)[: len(expected)]
            if found != expected:
                front.turn_off(name, f"it takes ({', '.join(found)}, ...)", False)
                continue
            guard = Guard(name, front.turn_off, is_vital=False)
            wrapped = functools.wraps(original)(wrap(front, guard, original))
            setattr(home, method, staticmethod(wrapped) if static is not original else wrapped)
        except Exception as error:
            front.turn_off(name, f"it is not there: {where(error)}", False)


def _render(front: Front, guard: Guard, original: Callable[..., Any]) -> Callable[..., Any]:
    async def render(renderer: Any, request: Any, *args: Any, **named: Any) -> Any:
        if guard.is_on:
            _parsed(front, guard, renderer, request)
        rendered = await original(renderer, request, *args, **named)
        if guard.is_on:
            _tokenized(front, guard, rendered)
        return rendered

    return render


def _parsed(front: Front, guard: Guard, renderer: Any, body: Any) -> None:
    try:
        request = current()
        if request is None or request.is_parsed:
            return
        request.is_named_by_body = request.has_own_id and "request_id" in body.model_fields_set
        front.parsed(request, parameters(body, _defaults(renderer)))
    except Exception as error:
        guard.failed(error)


def _defaults(renderer: Any) -> dict[str, Any]:
    """The model's default sampling parameters. vLLM reads a file to find them: once is enough."""
    found: dict[str, Any] | None = getattr(renderer, _DEFAULTS, None)
    if found is None:
        found = renderer.model_config.get_diff_sampling_param()
        setattr(renderer, _DEFAULTS, found)
    return found


def _tokenized(front: Front, guard: Guard, rendered: Any) -> None:
    try:
        request = current()
        if request is not None and (tokens := prompt_tokens(rendered)) is not None:
            front.tokenized(request, tokens)
    except Exception as error:
        guard.failed(error)


def _add_request(front: Front, guard: Guard, original: Callable[..., Any]) -> Callable[..., Any]:
    def add_request(processor: Any, request: Any, *args: Any, **named: Any) -> Any:
        if guard.is_on:
            try:
                served = current()
                if served is not None:
                    ids, sampling = request.prompt_token_ids, request.sampling_params
                    front.tokenized(served, 0 if ids is None else len(ids))
                    most_tokens = None if sampling is None else sampling.max_tokens
                    front.submitted(served, request.request_id, most_tokens)
            except Exception as error:
                guard.failed(error)
        return original(processor, request, *args, **named)

    return add_request


def _process_outputs(
    front: Front, guard: Guard, original: Callable[..., Any]
) -> Callable[..., Any]:
    def process_outputs(processor: Any, engine_core_outputs: Any, *args: Any, **named: Any) -> Any:
        if not guard.is_on:
            return original(processor, engine_core_outputs, *args, **named)
        begin_ns = front.clock.now_ns()
        processed = original(processor, engine_core_outputs, *args, **named)
        try:
            _received(front, engine_core_outputs, begin_ns)
            for name in processed.reqs_to_abort:
                if (choice := front.choice(name)) is not None:
                    choice.finished(EndReason.STOP_STRING)
        except Exception as error:
            guard.failed(error)
        return processed

    return process_outputs


def _received(front: Front, outputs: Any, begin_ns: int) -> None:
    """The time of the call is shared out equally: detokenizing is most of it."""
    end_ns = front.clock.now_ns()
    share_ns = (end_ns - begin_ns) // max(1, len(outputs))
    for output in outputs:
        choice = front.choice(output.request_id)
        if choice is None:
            continue
        choice.received(len(output.new_token_ids), begin_ns, end_ns, share_ns)
        if output.finish_reason is not None:
            choice.finished(end_reason(output, choice.has_all_tokens))


def _check_admission(
    front: Front, guard: Guard, original: Callable[..., Any]
) -> Callable[..., Any]:
    def check_admission(*args: Any, **named: Any) -> Any:
        try:
            return original(*args, **named)
        except Exception:
            request = current()
            if guard.is_on and request is not None:
                request.refused = EndReason.QUEUE_FULL
            raise

    return check_admission


def _base_request_id(
    front: Front, guard: Guard, original: Callable[..., Any]
) -> Callable[..., Any]:
    def base_request_id(raw_request: Any, default: Any = None) -> Any:
        request = current()
        if guard.is_on and request is not None and request.is_named_by_body and default is not None:
            return default
        return original(raw_request, default)

    return base_request_id


_RENDERER = ("vllm.renderers.online_renderer", "OnlineRenderer")
_PROCESSOR = ("vllm.v1.engine.output_processor", "OutputProcessor")
HOOKS: tuple[tuple[str, str, str, tuple[str, ...], Wrap], ...] = (
    (*_RENDERER, "render_chat", ("self", "request"), _render),
    (*_RENDERER, "render_completion", ("self", "request"), _render),
    (*_RENDERER, "render_responses", ("self", "request"), _render),
    (*_PROCESSOR, "add_request", ("self", "request"), _add_request),
    (*_PROCESSOR, "process_outputs", ("self", "engine_core_outputs"), _process_outputs),
    ("vllm.v1.engine.async_llm", "AsyncLLM", "check_admission", ("self",), _check_admission),
    (
        "vllm.entrypoints.serve.engine.serving",
        "BaseServing",
        "_base_request_id",
        ("raw_request", "default"),
        _base_request_id,
    ),
)
