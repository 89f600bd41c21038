"""Probes of a server before the run: its model and context, whether it accepts our requests, and
whether it reuses prompts."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from lab.load.errors import (
    BenchError,
    KeyRefused,
    RequestRefused,
    ServerUnreachable,
    WrongModel,
)
from lab.load.http import Broken, Pool, request_bytes
from lab.load.result import ErrorKind, ServerInfo
from lab.load.spec import BenchSpec, Endpoint, Fixed, SharedPrefix
from lab.load.stream import Reply, error_message
from lab.load.workload.lengths import longest
from lab.load.workload.prompts import Prompt, PromptMaker, request_body
from service.config.settings import ConfigError
from telemetry.facts.clock import Clock
from telemetry.facts.credentials import bearer

_PROBE_TOKENS = 288  # two blocks of the largest usual size and a little
_ID_RANGES = ((200, 32_000), (10, 256))  # of usual vocabularies, and of bytes
_TEMPLATE_TOKENS = 64
_OVERLOADED = (429, 503)


@dataclass(frozen=True, slots=True)
class Ready:
    """What the probes found, for building requests."""

    server: ServerInfo
    model: str | None
    maker: PromptMaker
    salt: int
    token_ids: tuple[int, int] | None
    context_tokens: int | None
    cache_off: bool


async def prepare(spec: BenchSpec, pool: Pool, clock: Clock) -> Ready:
    """Probe the server. Raises BenchError or ConfigError, with a message of one line."""
    models, software = await _models(spec, pool, clock)
    served = [str(entry.get("id")) for entry in _entries(models)]
    model = spec.model or (served[0] if served else None)
    context = _context_tokens(models, model)
    _check_context(spec, context)
    salt = secrets.randbits(32) if spec.salt is None else spec.salt
    ranges = (None,) if spec.tokenizer else (spec.token_ids,) if spec.token_ids else _ID_RANGES
    for token_ids in ranges:
        maker = PromptMaker(spec, salt, token_ids)
        prompt = maker.probe(_PROBE_TOKENS if context is None else min(_PROBE_TOKENS, context // 2))
        first = await _probe(spec, pool, clock, model, prompt)
        if first.status not in (400, 422) or token_ids == ranges[-1]:
            break
    _check_probe(spec, first, model, served)
    second = await _probe(spec, pool, clock, model, prompt)
    return Ready(
        server=ServerInfo(
            url=spec.url, model=model or "", software=software or first.server, models=models
        ),
        model=model,
        maker=maker,
        salt=salt,
        token_ids=token_ids,
        context_tokens=context,
        cache_off=_is_cache_off(second),
    )


def headers_of(spec: BenchSpec) -> dict[str, str]:
    """Headers of every request."""
    return {**bearer(spec.api_key), **spec.headers}


def generation_request(
    spec: BenchSpec, pool: Pool, body: bytes, more_headers: dict[str, str] | None = None
) -> bytes:
    """The whole request that carries `body`."""
    path = "/v1/chat/completions" if spec.endpoint is Endpoint.CHAT else "/v1/completions"
    headers = headers_of(spec) | (more_headers or {})
    return request_bytes(pool.address, "POST", path, body, headers)


async def _models(spec: BenchSpec, pool: Pool, clock: Clock) -> tuple[Any, str]:
    """`/v1/models` as JSON (None where there is no such route) and the server's name."""
    reply = _BufferedReply(clock.now_ns())
    try:
        await pool.exchange(
            request_bytes(pool.address, "GET", "/v1/models", b"", headers_of(spec)), reply
        )
    except Broken as broken:
        raise ServerUnreachable(
            f"{spec.url} cannot be reached ({broken}); start the server or correct the address"
        ) from broken
    if reply.status in (401, 403):
        raise _key_refused(spec, reply.status)
    try:
        models = msgspec.json.decode(reply.body()) if reply.status == 200 else None
    except msgspec.MsgspecError:
        models = None
    return models, reply.server


class _BufferedReply(Reply):
    """A reply whose whole body is kept, whatever its status."""

    __slots__ = ("_parts",)

    def __init__(self, now_ns: int) -> None:
        super().__init__(now_ns, now_ns)
        self._parts: list[bytes] = []

    def on_body(self, body: bytes, now_ns: int) -> None:
        self._parts.append(body)

    def body(self) -> bytes:
        return b"".join(self._parts)


async def _probe(
    spec: BenchSpec, pool: Pool, clock: Clock, model: str | None, prompt: Prompt
) -> Reply:
    """Send a request like those of the run, for one token."""
    now_ns = clock.now_ns()
    reply = Reply(now_ns, now_ns)
    payload = generation_request(spec, pool, request_body(spec, model, prompt, 1))
    try:
        await pool.exchange(payload, reply)
    except Broken as broken:
        reply.fail(broken.kind, str(broken))
    reply.finish()
    return reply


def _check_probe(spec: BenchSpec, reply: Reply, model: str | None, served: list[str]) -> None:
    """Raise BenchError if the first probe shows that the run cannot succeed."""
    status, message = reply.status, error_message(reply.body())
    if status in (401, 403):
        raise _key_refused(spec, status)
    if status == 404:
        names = f"; it serves {', '.join(served)}" if served and served[0] not in message else ""
        raise WrongModel(
            f"{spec.url} does not know model {model!r} ({message}){names}: use --model"
        )
    if status in (400, 422):
        raise RequestRefused(
            f"{spec.url} refuses the bench's requests: {message or status}; switch fields off with "
            "--no-ignore-eos, --no-stream-usage or --extra-body '{\"field\": null}', "
            "or set --token-ids LOW:HIGH inside the vocabulary"
        )
    if status in _OVERLOADED:
        return
    if reply.error_kind is not None and reply.error_kind is not ErrorKind.EMPTY:
        raise BenchError(f"{spec.url}: the first request failed: {message or reply.error_text}")


def _key_refused(spec: BenchSpec, status: int) -> KeyRefused:
    what = "needs a key" if spec.api_key is None else "does not accept the key"
    return KeyRefused(f"{spec.url} {what} (status {status}): give it with --api-key")


def _is_cache_off(again: Reply) -> bool:
    """Whether nothing was reused when the same prompt was sent a second time."""
    usage = again.usage
    return again.error_kind is None and usage is not None and usage.cached_tokens == 0


def _entries(models: Any) -> list[dict[str, Any]]:
    found = models.get("data") if isinstance(models, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _context_tokens(models: Any, model: str | None) -> int | None:
    for entry in _entries(models):
        value = entry.get("max_model_len")
        if entry.get("id") == model and isinstance(value, int):
            return value
    return None


def _check_context(spec: BenchSpec, context: int | None) -> None:
    """Fixed lengths must fit the context; drawn ones are shortened when they do not."""
    for one in spec.classes:
        fixed = isinstance(one.lengths, Fixed | SharedPrefix)
        if context is not None and fixed and longest(one.lengths) > context:
            raise ConfigError(
                f"class {one.name!r} needs {longest(one.lengths)} tokens a request, "
                f"but the model's context is {context}: choose shorter lengths"
            )


def clip(ready: Ready, spec: BenchSpec, prompt: int, output: int) -> tuple[int, int]:
    """Lengths that fit the context: the output is shortened first."""
    if ready.context_tokens is None:
        return prompt, output
    room = ready.context_tokens
    if spec.endpoint is Endpoint.CHAT:
        room -= _TEMPLATE_TOKENS
    if prompt + output <= room:
        return prompt, output
    prompt = min(prompt, max(1, room - 1))
    return prompt, max(1, min(output, room - prompt))
