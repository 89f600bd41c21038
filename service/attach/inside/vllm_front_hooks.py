"""The hooks in the classes of vLLM's front end: each calls the original and looks on."""

from __future__ import annotations

import functools
import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from service.attach.inside.front import Front, current
from service.attach.inside.hook import Hook, where
from service.attach.inside.vllm_front_read import end_reason, parameters, prompt_tokens
from telemetry.facts.reasons import EndReason

Engine = weakref.ref[Any]
Wrap = Callable[[Front, Hook, Engine, Callable[..., Any]], Callable[..., Any]]
_DEFAULTS = "_phasescope_defaults"


def install(front: Front, engine: Engine) -> None:
    """Put in every hook that fits; the sidecar hears of the others."""
    for module, owner, method, expected, wrap in _HOOKS:
        hook = Hook(f"{owner}.{method}", front.sink.turn_off)
        try:
            home = getattr(importlib.import_module(module), owner)
            static = inspect.getattr_static(home, method)
            original = static.__func__ if isinstance(static, staticmethod) else static
            found = tuple(inspect.signature(original).parameters)[: len(expected)]
            if found != expected:
                hook.stop(f"its parameters are {', '.join(found)}")
                continue
            wrapped = functools.wraps(original)(wrap(front, hook, engine, original))
            is_static = isinstance(static, staticmethod)
            setattr(home, method, staticmethod(wrapped) if is_static else wrapped)
        except Exception as error:
            hook.stop(f"it is not there: {where(error)}")


def _render(
    front: Front, hook: Hook, engine: Engine, original: Callable[..., Any]
) -> Callable[..., Any]:
    async def render(renderer: Any, request: Any, *args: Any, **named: Any) -> Any:
        if hook.is_on:
            _parsed(front, hook, renderer, request)
        rendered = await original(renderer, request, *args, **named)
        if hook.is_on:
            _tokenized(front, hook, rendered)
        return rendered

    return render


def _parsed(front: Front, hook: Hook, renderer: Any, body: Any) -> None:
    try:
        request = current()
        if request is None or request.is_parsed:
            return
        request.is_named_by_body = request.has_own_id and "request_id" in body.model_fields_set
        front.parsed(request, parameters(body, _defaults(renderer)))
    except Exception as error:
        hook.fail(error)


def _defaults(renderer: Any) -> dict[str, Any]:
    """The model's default sampling parameters. vLLM reads a file to find them: once is enough."""
    found: dict[str, Any] | None = getattr(renderer, _DEFAULTS, None)
    if found is None:
        found = renderer.model_config.get_diff_sampling_param()
        setattr(renderer, _DEFAULTS, found)
    return found


def _tokenized(front: Front, hook: Hook, rendered: Any) -> None:
    try:
        request = current()
        if request is not None and (tokens := prompt_tokens(rendered)) is not None:
            front.tokenized(request, tokens)
    except Exception as error:
        hook.fail(error)


def _add_request(
    front: Front, hook: Hook, engine: Engine, original: Callable[..., Any]
) -> Callable[..., Any]:
    def add_request(processor: Any, request: Any, *args: Any, **named: Any) -> Any:
        if hook.is_on:
            try:
                served = current()
                if served is not None:
                    ids = request.prompt_token_ids
                    tokens = 0 if ids is None else len(ids)
                    front.tokenized(served, tokens)
                    front.submitted(served, request.request_id, tokens)
            except Exception as error:
                hook.fail(error)
        return original(processor, request, *args, **named)

    return add_request


def _process_outputs(
    front: Front, hook: Hook, engine: Engine, original: Callable[..., Any]
) -> Callable[..., Any]:
    def process_outputs(processor: Any, engine_core_outputs: Any, *args: Any, **named: Any) -> Any:
        if not hook.is_on:
            return original(processor, engine_core_outputs, *args, **named)
        begin_ns = front.clock.now_ns()
        processed = original(processor, engine_core_outputs, *args, **named)
        try:
            _received(front, engine, engine_core_outputs, begin_ns)
            for name in processed.reqs_to_abort:
                if (choice := front.choice(name)) is not None:
                    choice.finished(EndReason.STOP_STRING)
        except Exception as error:
            hook.fail(error)
        return processed

    return process_outputs


def _received(front: Front, engine: Engine, outputs: Any, begin_ns: int) -> None:
    """The time of the call is shared out equally: detokenizing is most of it."""
    end_ns = front.clock.now_ns()
    share_ns = (end_ns - begin_ns) // max(1, len(outputs))
    for output in outputs:
        choice = front.choice(output.request_id)
        if choice is None:
            continue
        choice.received(len(output.new_token_ids), begin_ns, end_ns, share_ns)
        if output.finish_reason is not None:
            choice.finished(end_reason(output, choice.known_tokens >= _context_tokens(engine)))


def _context_tokens(engine: Engine) -> int:
    return int(engine().vllm_config.model_config.max_model_len)


def _check_admission(
    front: Front, hook: Hook, engine: Engine, original: Callable[..., Any]
) -> Callable[..., Any]:
    def check_admission(*args: Any, **named: Any) -> Any:
        try:
            return original(*args, **named)
        except Exception:
            request = current()
            if hook.is_on and request is not None:
                request.refused = EndReason.QUEUE_FULL
            raise

    return check_admission


def _base_request_id(
    front: Front, hook: Hook, engine: Engine, original: Callable[..., Any]
) -> Callable[..., Any]:
    def base_request_id(raw_request: Any, default: Any = None) -> Any:
        request = current()
        if hook.is_on and request is not None and request.is_named_by_body and default is not None:
            return default
        return original(raw_request, default)

    return base_request_id


_RENDERER = ("vllm.renderers.online_renderer", "OnlineRenderer")
_PROCESSOR = ("vllm.v1.engine.output_processor", "OutputProcessor")
_HOOKS: tuple[tuple[str, str, str, tuple[str, ...], Wrap], ...] = (
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
