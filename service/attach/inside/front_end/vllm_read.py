"""Reads what the front end needs from vLLM's objects. It imports nothing of vLLM: what an object
does not have raises here, which turns the hook off that asked."""

from __future__ import annotations

import math
from typing import Any

from service.attach.inside.front_end.front import Parameters
from telemetry.facts.reasons import EndReason

_MOST = (1 << 63) - 1  # what the wire holds
_MODEL_CHARACTERS = 256
_JSON_FORMATS = ("json_object", "json_schema")


def parameters(body: Any, defaults: dict[str, Any]) -> Parameters:
    """The parameters of a parsed request body of either generation route; `defaults` are the
    model's. The engine has not looked at the values yet, so any of them may be as large as a client
    likes."""

    def number(name: str, neutral: float) -> float:
        value = getattr(body, name, None)
        value = defaults.get(name, neutral) if value is None else value
        return float(_bounded(value) if isinstance(value, int) else value)

    def whole(value: float) -> int:
        return _bounded(int(value)) if math.isfinite(value) else 0

    prompts = getattr(body, "prompt", None)
    is_list = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    return Parameters(
        model=str(body.model or "")[:_MODEL_CHARACTERS],
        stream=bool(body.stream),
        choices=_bounded(
            int(getattr(body, "n", None) or 1) * (len(prompts or ()) if is_list else 1)
        ),
        max_tokens=_max_tokens(body),
        temperature=number("temperature", 1.0),
        top_p=number("top_p", 1.0),
        top_k=max(0, whole(number("top_k", 0))),
        seed=_seed(body),
        presence_penalty=number("presence_penalty", 0.0),
        frequency_penalty=number("frequency_penalty", 0.0),
        output_type="json" if _must_be_json(body) else "text",
    )


def prompt_tokens(rendered: Any) -> int | None:
    """How many tokens all prompts of a render result have; None: it is an error, or has no token
    ids."""
    if isinstance(rendered, tuple):
        rendered = rendered[-1]  # chat: the conversation, then the inputs of the engine
    elif not isinstance(rendered, list):
        rendered = [getattr(rendered, "engine_input", None)]
    total = 0
    for prompt in rendered:
        ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
        if ids is None:
            return None
        total += len(ids)
    return total


def end_reason(output: Any, has_all_tokens: bool) -> EndReason:
    """Why a sequence ended, by the output of the engine core that ends it; `has_all_tokens`: it has
    as many as it may have."""
    name = output.finish_reason.name
    if name == "STOP":
        return EndReason.EOS if output.stop_reason is None else EndReason.STOP_TOKEN
    if name == "LENGTH":
        return EndReason.MAX_TOKENS if has_all_tokens else EndReason.CONTEXT
    if name == "REPETITION":
        return EndReason.STOP_STRING
    # ABORT: by the server, as the abort of a client ends no output
    return EndReason.DELETED if name == "ABORT" else EndReason.INTERNAL


def _max_tokens(body: Any) -> int | None:
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        value = getattr(body, name, None)
        if value is not None:
            return _bounded(int(value))
    return None


def _seed(body: Any) -> int | None:
    seed = getattr(body, "seed", None)
    return None if seed is None else _bounded(int(seed))


def _bounded(value: int) -> int:
    return max(-_MOST, min(_MOST, value))


def _must_be_json(body: Any) -> bool:
    wanted = getattr(body, "response_format", None)
    if getattr(wanted, "type", None) in _JSON_FORMATS:
        return True
    constraint = getattr(body, "structured_outputs", None)
    return bool(getattr(constraint, "json", None) or getattr(constraint, "json_object", None))
