"""What a replay may change of an engine, by the names of `serve`'s flags: `name=value`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from service.config.settings import ConfigError
from service.engine.admission import Limits
from service.engine.fairness import Policy

_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """A name, the limit that it is, how its value is read, and what it means."""

    name: str
    limit: str
    read: Callable[[str], Any]
    meaning: str


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _maybe_count(text: str) -> int | None:
    return None if text == "none" else _count(text)


def _switch(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError(text)
    return _WORDS[text.lower()]


def _maybe_ms(text: str) -> int | None:
    return None if text == "none" else int(float(text) * 1e6)


SETTINGS = (
    Setting("max_num_seqs", "max_seqs", _count, "sequences in one batch"),
    Setting("max_batched_tokens", "budget_tokens", _count, "token budget of one step"),
    Setting("kv_blocks", "blocks_total", _count, "blocks of the KV cache"),
    Setting("chunked_prefill", "chunked_prefill", _switch, "on or off"),
    Setting("prefix_cache", "prefix_cache", _switch, "on or off"),
    Setting("itl_target_ms", "itl_target_ns", _maybe_ms, "adaptive budget, or none"),
    Setting("fairness", "policy", Policy, "fcfs or vtc"),
    Setting("tenant_max_seqs", "tenant_max_seqs", _maybe_count, "of one tenant, or none"),
    Setting("tenant_queue_limit", "tenant_queue_limit", _maybe_count, "of one tenant, or none"),
    Setting("queue_limit", "queue_limit_requests", _count, "requests that may wait"),
    Setting("queue_limit_tokens", "queue_limit_tokens", _count, "prompt tokens that may wait"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def changed_limits(limits: Limits, words: Iterable[str]) -> Limits:
    """`limits` with each `name=value` of `words` in place. Raises ConfigError."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        setting = _BY_NAME.get(name.strip().replace("-", "_"))
        if setting is None or not equals:
            known = ", ".join(setting.name for setting in SETTINGS)
            raise ConfigError(f"--set {word}: give NAME=VALUE, where NAME is one of {known}")
        try:
            values[setting.limit] = setting.read(text.strip())
        except ValueError:
            raise ConfigError(f"--set {word}: wanted {setting.meaning}") from None
    try:
        return replace(limits, **values)
    except AssertionError as error:
        raise ConfigError(f"--set {' '.join(words)}: {error}") from error
