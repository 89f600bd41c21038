"""Observes SGLang's front end: the process of its HTTP server, with the tokenizer manager.

The application gets the middleware when the tokenizer manager is made, which is before it serves.

    OpenAIServingBase.handle_request           the body is valid
    TokenizerManager._tokenize_one_request     the prompt is tokens
    TokenizerManager._send_one_request, _send_batch_request
                                               sequences go to the scheduler, with its names of them
    TokenizerManager._handle_batch_output      tokens came from the detokenizer's process, as text
    TokenizerManager._handle_abort_req         the scheduler ended a sequence without a step

An exception in one of them never reaches SGLang; after a few of them that hook is off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.attach.inside.front_end.front import Front, Live, current
from service.attach.inside.front_end.vllm_read import parameters
from service.attach.inside.guard import Guard
from service.attach.inside.middleware import AttachMiddleware
from service.attach.inside.sglang.seams import (
    ENGINE,
    FRONT_METHODS,
    HTTP_SERVER,
    SERVING,
    TOKENIZER,
    check_methods,
)
from service.attach.inside.transport import Sender
from service.attach.wire import Role
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason

Original = Callable[..., Any]
_UNAVAILABLE = 503


def register(path: Path, version: str) -> None:
    """Raises UnknownEngine if SGLang is not as it is expected to be."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    check_methods(FRONT_METHODS)
    clock = MonotonicClock()
    live = Live(clock)
    sender = Sender(
        Role.FRONT_END, ENGINE, version, 0, path=path, listing=live.listing, clock=clock
    )
    front = Front(sender, clock, live, lambda: False)
    hooks = FrontHooks(front)
    for target, hook in hooks.targets.items():
        HookRegistry.register(target, hook, HookType.AROUND)


class FrontHooks:
    """`targets` has the hooks by the name of what they go around."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._guards: dict[str, Guard] = {}
        manager = f"{TOKENIZER}.TokenizerManager"
        self.targets: dict[str, Original] = {
            f"{SERVING}.OpenAIServingBase.handle_request": self._handle,
            f"{manager}.__init__": self._begin,
            f"{manager}._tokenize_one_request": self._tokenize,
            f"{manager}._send_one_request": self._send_one,
            f"{manager}._send_batch_request": self._send_batch,
            f"{manager}._handle_batch_output": self._receive,
            f"{manager}._handle_abort_req": self._aborted,
        }

    def _look(self, name: str, look: Callable[[], None]) -> None:
        """Raises nothing; after a few errors the hook is off."""
        guard = self._guards.get(name)
        if guard is None:
            guard = self._guards[name] = Guard(name, self._front.turn_off, is_vital=False)
        if guard.is_on:
            try:
                look()
            except Exception as error:
                guard.failed(error)

    def _begin(self, original: Original, *args: Any, **named: Any) -> Any:
        answer = original(*args, **named)
        self._look("http_server", self._add_middleware)
        return answer

    def _add_middleware(self) -> None:
        """Not there if SGLang is used as a library."""
        server = sys.modules.get(HTTP_SERVER)
        if server is not None:
            server.app.add_middleware(AttachMiddleware, attach=lambda app: self._front)
            self._front.begin()

    async def _handle(
        self, original: Original, serving: Any, request: Any, *args: Any, **named: Any
    ) -> Any:
        def look() -> None:
            served = current()
            if served is not None and hasattr(request, "stream"):
                defaults = getattr(serving, "default_sampling_params", None) or {}
                self._front.parsed(served, parameters(request, defaults))

        self._look("handle_request", look)
        return await original(serving, request, *args, **named)

    async def _tokenize(self, original: Original, *args: Any, **named: Any) -> Any:
        tokenized = await original(*args, **named)

        def look() -> None:
            served = current()
            if served is not None:
                self._front.tokenized(served, len(tokenized.input_ids or ()))

        self._look("_tokenize_one_request", look)
        return tokenized

    async def _send_one(
        self, original: Original, manager: Any, tokenized_obj: Any, *args: Any, **named: Any
    ) -> Any:
        self._look("_send_one_request", lambda: self._submit([tokenized_obj]))
        return await original(manager, tokenized_obj, *args, **named)

    async def _send_batch(
        self, original: Original, manager: Any, tokenized_objs: Any, *args: Any, **named: Any
    ) -> Any:
        self._look("_send_batch_request", lambda: self._submit(tokenized_objs))
        return await original(manager, tokenized_objs, *args, **named)

    def _submit(self, tokenized: list[Any]) -> None:
        served = current()
        for one in tokenized:
            if served is not None:
                most_tokens = getattr(one.sampling_params, "max_new_tokens", None)
                self._front.submitted(served, one.rid, most_tokens)

    async def _receive(
        self, original: Original, manager: Any, recv_obj: Any, *args: Any, **named: Any
    ) -> Any:
        """Before SGLang's own work, which is to wake those that wait for the text."""
        self._look("_handle_batch_output", lambda: self._received(recv_obj))
        return await original(manager, recv_obj, *args, **named)

    def _received(self, outputs: Any) -> None:
        """Tokens became text in another process; what it took there is not seen here."""
        now_ns = self._front.clock.now_ns()
        for name, tokens, reason in zip(
            outputs.rids, outputs.output_ids, outputs.finished_reasons, strict=True
        ):
            choice = self._front.choice(name)
            if choice is None:
                continue
            choice.received(len(tokens), now_ns, now_ns, 0)
            if reason is not None:
                choice.finished(finish_reason(reason))

    def _aborted(
        self, original: Original, manager: Any, recv_obj: Any, *args: Any, **named: Any
    ) -> Any:
        def look() -> None:
            choice = self._front.choice(recv_obj.rid)
            if choice is not None and is_refusal(recv_obj.finished_reason):
                choice.request.refused = EndReason.QUEUE_FULL

        self._look("_handle_abort_req", look)
        return original(manager, recv_obj, *args, **named)


def finish_reason(reason: dict[str, Any]) -> EndReason:
    """Why a sequence ended, by the output that ends it. What matched is only looked at for its
    type."""
    if reason["type"] == "length":
        return EndReason.MAX_TOKENS
    if reason["type"] == "abort":
        return EndReason.DELETED
    return EndReason.STOP_STRING if isinstance(reason.get("matched"), str) else EndReason.EOS


def is_refusal(reason: Any) -> bool:
    """The scheduler had no room for it in its queue."""
    return isinstance(reason, dict) and reason.get("status_code") == _UNAVAILABLE
