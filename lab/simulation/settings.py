"""What a replay may change of an engine, by the names of `serve`'s flags: `name=value`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from service.config.settings import ConfigError
from service.engine.admission import Limits
from service.engine.fairness import Policy
from telemetry.facts.limits import AUTO

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


def _budget(text: str) -> int | str:
    return AUTO if text == AUTO else _count(text)


def _drafts(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _is_by_slo(text: str) -> bool:
    return {"slo": True, "arrival": False}[text]


SETTINGS = (
    Setting("max_num_seqs", "max_seqs", _count, "sequences in one batch"),
    Setting("max_batched_tokens", "budget_tokens", _budget, "token budget of one step, or auto"),
    Setting("kv_blocks", "blocks_total", _count, "blocks of the KV cache"),
    Setting("chunked_prefill", "chunked_prefill", _switch, "on or off"),
    Setting("prefix_cache", "prefix_cache", _switch, "on or off"),
    Setting("itl_target_ms", "itl_target_ns", _maybe_ms, "adaptive budget, or none"),
    Setting("order", "slo_order", _is_by_slo, "slo or arrival"),
    Setting("refuse_late", "refuse_late", _switch, "on or off"),
    Setting("speculative_tokens", "draft_tokens", _drafts, "draft tokens a step"),
    Setting("fairness", "policy", Policy, "fcfs or vtc"),
    Setting("tenant_max_seqs", "tenant_max_seqs", _maybe_count, "of one tenant, or none"),
    Setting("tenant_queue_limit", "tenant_queue_limit", _maybe_count, "of one tenant, or none"),
    Setting("queue_limit", "queue_limit_requests", _count, "requests that may wait"),
    Setting("queue_limit_tokens", "queue_limit_tokens", _count, "prompt tokens that may wait"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def changed_limits(limits: Limits, words: Iterable[str]) -> Limits:
    """`limits` with each `name=value` of `words` in place. Raises ConfigError."""
    try:
        return replace(limits, **changed_fields(words))
    except AssertionError as error:
        raise ConfigError(f"--set {' '.join(words)}: {error}") from error


def changed_fields(words: Iterable[str]) -> dict[str, Any]:
    """The fields of Limits that `name=value` words set. Raises ConfigError."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        setting = _BY_NAME.get(name.strip().replace("-", "_"))
        if setting is None or not equals:
            known = ", ".join(setting.name for setting in SETTINGS)
            raise ConfigError(f"--set {word}: give NAME=VALUE, where NAME is one of {known}")
        try:
            value = setting.read(text.strip())
        except (ValueError, KeyError):
            raise ConfigError(f"--set {word}: wanted {setting.meaning}") from None
        if setting.limit == "budget_tokens":
            values["auto_budget"] = value == AUTO
        if value != AUTO:
            values[setting.limit] = value
    return values
