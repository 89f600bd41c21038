"""What clients may send, checked field by field; nothing is ignored in silence.

Every body is read into a plain dict first, so that each wrong field gets an error that
names it. Known OpenAI fields that are not supported are accepted only at the value that
means "off".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from service.config import SamplingDefaults
from service.engine.plan import Grammar
from service.gateway.errors import bad_request
from service.gateway.formats import parse_grammar

MAX_CHOICES = 16
MAX_SEQUENCES = 256
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_TOKENS = 1 << 31
MAX_PRIORITY = 100
MAX_SALT_CHARACTERS = 256

_ROLES = ("system", "developer", "user", "assistant")

# field -> values that mean "off"
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
    "suffix": (None, ""),
    "echo": (None, False),
    "best_of": (None, 1),
}
_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A checked body of either route. Exactly one of `messages` and `prompts` is set."""

    model: str | None
    messages: tuple[dict[str, str], ...] | None = None
    prompts: tuple[str | list[int], ...] | None = None
    stream: bool = False
    include_usage: bool = False
    include_metrics: bool = False
    choices: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None
    timeout_s: float | None = None
    priority: int = 0
    cache_salt: str = ""
    cache_prefix: bool = True
    typed_events: bool = False


class _Fields:
    """The body as a dict from which checked values are taken; what is left is unknown."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._left = dict(body)

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def number(
        self, name: str, default: float, low: float, high: float, open_low: bool = False
    ) -> float:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_request(f"{name} must be a number", name)
        if not low <= value <= high or (open_low and value == low):  # NaN is in no range
            edge = "above" if open_low else "from"
            raise bad_request(f"{name} must be {edge} {low:g} to {high:g}, not {value}", name)
        return float(value)

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad_request(f"{name} must be an integer", name)
        if not low <= value <= high:
            raise bad_request(f"{name} must be from {low} to {high}, not {value}", name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be true or false", name)
        return value

    def refuse_rest(self) -> None:
        """Off switches of what we lack are fine; everything else left over is an error."""
        for name in _WITHOUT_EFFECT:
            self.take(name)
        for name, neutral in _UNSUPPORTED.items():
            if name in self._left and self.take(name) not in neutral:
                raise bad_request(f"{name} is not supported by this server", name, "unsupported")
        for name in self._left:
            raise bad_request(f"unknown field {name!r}", name, "unknown_field")


def parse_chat(body: bytes, defaults: SamplingDefaults) -> GenerationRequest:
    """Body of POST /v1/chat/completions. Raises ApiError."""
    fields = _Fields(_json_object(body))
    messages = _messages(fields.take("messages"))
    limit = fields.integer("max_tokens", None, 1, MAX_TOKENS)
    limit = fields.integer("max_completion_tokens", limit, 1, MAX_TOKENS)
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", None, 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    logprobs = (top or 0) if wanted else None
    return _common(fields, defaults, messages=messages, max_tokens=limit, logprobs=logprobs)


def parse_completion(body: bytes, defaults: SamplingDefaults) -> GenerationRequest:
    """Body of POST /v1/completions. Raises ApiError."""
    fields = _Fields(_json_object(body))
    prompts = _prompts(fields.take("prompt"))
    limit = fields.integer("max_tokens", None, 1, MAX_TOKENS)
    logprobs = fields.integer("logprobs", None, 0, MAX_LOGPROBS)
    return _common(fields, defaults, prompts=prompts, max_tokens=limit, logprobs=logprobs)


def _common(fields: _Fields, defaults: SamplingDefaults, **own: Any) -> GenerationRequest:
    """The fields that both routes share."""
    model = fields.take("model")
    if model is not None and not isinstance(model, str):
        raise bad_request("model must be a string", "model")
    stream = fields.flag("stream")
    include_usage, typed_events = _stream_options(fields.take("stream_options"), stream)
    request = GenerationRequest(
        model=model,
        stream=stream,
        include_usage=include_usage,
        include_metrics=fields.flag("include_metrics"),
        typed_events=typed_events,
        choices=fields.integer("n", 1, 1, MAX_CHOICES) or 1,
        min_tokens=fields.integer("min_tokens", 0, 0, MAX_TOKENS) or 0,
        temperature=fields.number("temperature", defaults.temperature, 0.0, 2.0),
        top_p=fields.number("top_p", defaults.top_p, 0.0, 1.0, open_low=True),
        top_k=max(0, fields.integer("top_k", defaults.top_k, -1, MAX_TOKENS) or 0),
        min_p=fields.number("min_p", defaults.min_p, 0.0, 1.0),
        seed=fields.integer("seed", None, -(1 << 63), (1 << 63) - 1),
        repetition_penalty=fields.number(
            "repetition_penalty", defaults.repetition_penalty, 0.0, 2.0, open_low=True
        ),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        logit_bias=_logit_bias(fields.take("logit_bias")),
        stops=_stops(fields.take("stop")),
        stop_token_ids=_token_ids(fields.take("stop_token_ids"), "stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        grammar=parse_grammar(fields.take),
        timeout_s=fields.number("timeout", 0.0, 0.0, 86_400.0, open_low=True) or None,
        priority=fields.integer("priority", 0, -MAX_PRIORITY, MAX_PRIORITY) or 0,
        cache_salt=_cache_salt(fields.take("cache_salt")),
        cache_prefix=fields.flag("cache_prefix", default=True),
        **own,
    )
    fields.refuse_rest()
    if request.choices * len(request.prompts or (None,)) > MAX_SEQUENCES:
        raise bad_request(f"prompts times n must not exceed {MAX_SEQUENCES}", "n")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise bad_request("min_tokens must not exceed max_tokens", "min_tokens")
    if request.grammar is not None and request.ignore_eos:
        raise bad_request("a constrained text must be able to end", "ignore_eos", "invalid_grammar")
    return request


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply", code="invalid_json") from error
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    return value


def _messages(value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise bad_request("messages must be a list of at least one message", "messages")
    return tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(value))


def _message(entry: Any, where: str) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise bad_request(f"{where} must be an object", where)
    role = entry.get("role")
    if role not in _ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    unknown = sorted(set(entry) - {"role", "content", "name"})
    if unknown:
        raise bad_request(
            f"{where}.{unknown[0]} is not supported by this server", where, "unsupported"
        )
    role = "system" if role == "developer" else role
    return {"role": role, "content": _content(entry.get("content"), f"{where}.content")}


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise bad_request(f"{where} must be a string or a list of text parts", where)
    texts: list[str] = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise bad_request(f"{where}: only parts of type text are supported", where)
        if not isinstance(part.get("text"), str):
            raise bad_request(f"{where}: a text part needs a string in text", where)
        texts.append(part["text"])
    return "".join(texts)


def _prompts(value: Any) -> tuple[str | list[int], ...]:
    """One prompt (text or ids) or a list of prompts."""
    if isinstance(value, str):
        found: list[str | list[int]] = [value]
    elif isinstance(value, list) and value and _all(value, lambda item: isinstance(item, int)):
        found = [list(_token_ids(value, "prompt"))]
    elif isinstance(value, list) and value and _all(value, lambda item: isinstance(item, str)):
        found = list(value)
    elif isinstance(value, list) and value and _all(value, lambda item: isinstance(item, list)):
        found = [list(_token_ids(item, "prompt")) for item in value]
    else:
        raise bad_request(
            "prompt must be a string, a list of strings, a list of token ids or a list of such "
            "lists, and not empty",
            "prompt",
        )
    if not all(found):
        raise bad_request("prompt must not be empty", "prompt")
    return tuple(found)


def _all(values: list[Any], test: Callable[[Any], bool]) -> bool:
    return all(test(value) for value in values)


def _token_ids(value: Any, name: str) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or any(
        isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value
    ):
        raise bad_request(f"{name} must be a list of token ids (integers from 0)", name)
    return tuple(value)


def _stops(value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if found is None:
        return ()
    if (
        not isinstance(found, list)
        or len(found) > MAX_STOPS
        or not all(isinstance(item, str) and item for item in found)
    ):
        raise bad_request(
            f"stop must be a non-empty string or a list of up to {MAX_STOPS} such strings", "stop"
        )
    return tuple(found)


def _logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    wrong = bad_request("logit_bias must map token ids to numbers from -100 to 100", "logit_bias")
    if not isinstance(value, dict):
        raise wrong
    found: dict[int, float] = {}
    for key, bias in value.items():
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= 100:
            raise wrong
        if not key.isdecimal() or len(key) > 10:
            raise wrong
        found[int(key)] = float(bias)
    return found


def _stream_options(value: Any, stream: bool) -> tuple[bool, bool]:
    """(include_usage, include_events): both off unless asked for."""
    if value is None:
        return False, False
    if not stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    known = {"include_usage", "include_events", "include_obfuscation"}
    if not isinstance(value, dict) or set(value) - known:
        raise bad_request(
            "stream_options knows include_usage and include_events only", "stream_options"
        )
    flags: list[bool] = []
    for name in ("include_usage", "include_events"):
        flag = value.get(name, False)
        if not isinstance(flag, bool):
            raise bad_request(f"stream_options.{name} must be true or false", "stream_options")
        flags.append(flag)
    return flags[0], flags[1]


def _cache_salt(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value or len(value) > MAX_SALT_CHARACTERS:
        raise bad_request(
            f"cache_salt must be a string of 1 to {MAX_SALT_CHARACTERS} characters", "cache_salt"
        )
    return value
