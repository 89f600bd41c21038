"""Settings by name, as `/debug/limits` has them, to and from the scheduler's limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from diagnosis.settings_search.answer import Setting
from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.limits_record import LimitError, runtime_of, with_runtime
from telemetry.facts.limits import AUTO, LimitValue, named

KV_BLOCKS = "kv_memory"  # in blocks
CHUNKED_PREFILL = "chunked_prefill"
FAIRNESS = "fairness"

_SAME = (
    "max_num_seqs:max_seqs",
    "max_auto_tokens:budget_tokens",
    "queue_limit:queue_limit_requests",
    "queue_limit_tokens:queue_limit_tokens",
    "tenant_max_seqs:tenant_max_seqs",
    "tenant_queue_limit:tenant_queue_limit",
    "tenant_weights:tenant_weights",
    "prefix_cache:prefix_cache",
    "speculative_tokens:draft_tokens",
    "refuse_late:refuse_late",
    f"{KV_BLOCKS}:blocks_total",
    f"{CHUNKED_PREFILL}:chunked_prefill",
)
_FIELD: dict[str, str] = dict(one.split(":") for one in _SAME)
NAMES = frozenset(_FIELD) | {"max_batched_tokens", "itl_target_ms", "order", FAIRNESS}


class NotPossible(ValueError):
    """An engine cannot have these settings; the message is one line."""


def values_of(limits: Limits) -> dict[str, LimitValue]:
    """All settings by name."""
    return {
        **named(runtime_of(limits)),
        KV_BLOCKS: limits.blocks_total,
        CHUNKED_PREFILL: limits.chunked_prefill,
        FAIRNESS: limits.policy.value,
    }


def fields_of(name: str, value: LimitValue) -> dict[str, object]:
    """The fields of Limits that a setting sets. Raises NotPossible for an unknown name."""
    if name == "max_batched_tokens":
        return {"auto_budget": True} if value == AUTO else _fixed_budget(value)
    if name == "order":
        return {"slo_order": value == "slo"}
    if name == "itl_target_ms":
        assert value is None or isinstance(value, int | float)
        return {"itl_target_ns": None if value is None else round(value * 1e6)}
    if name == FAIRNESS:
        return {"policy": Policy(str(value))}
    if name not in _FIELD:
        raise NotPossible(f"{name}: no such setting; one of {', '.join(sorted(_FIELD))}")
    return {_FIELD[name]: value}


def _fixed_budget(value: LimitValue) -> dict[str, object]:
    return {"auto_budget": False, "budget_tokens": value}


def changed_fields(settings: Sequence[Setting]) -> dict[str, object]:
    found: dict[str, object] = {}
    for setting in settings:
        found |= fields_of(setting.name, setting.value)
    return found


def applied(limits: Limits, settings: Sequence[Setting]) -> Limits:
    """`limits` with the settings. Raises NotPossible."""
    fields = changed_fields(settings)
    try:
        return replace(limits, **fields)  # type: ignore[arg-type]
    except AssertionError as error:
        raise NotPossible(f"{' '.join(str(one) for one in settings)}: {error}") from error


def settings_of(
    values: Mapping[str, LimitValue], start: Limits, now: Limits
) -> tuple[Setting, ...]:
    """Changes from `now` to `values`; `start` are the limits with which the engine began, which
    bound what can change while it runs. Values that are not new are left out.

    Raises NotPossible.
    """
    was = values_of(now)
    changed = {name: value for name, value in values.items() if was.get(name) != value}
    fields: dict[str, object] = {}
    for name, value in changed.items():
        fields |= fields_of(name, value)
    at_once = _is_runtime(changed, fields, start, now)
    return tuple(
        Setting(
            name=name,
            value=value,
            was=was.get(name),
            runtime=at_once or _is_runtime({name}, fields_of(name, value), start, now),
        )
        for name, value in changed.items()
    )


def _is_runtime(
    names: Collection[str], fields: dict[str, object], start: Limits, now: Limits
) -> bool:
    """Whether a running engine can be given all of them together."""
    if any(name in (KV_BLOCKS, CHUNKED_PREFILL, FAIRNESS) for name in names):
        return False
    try:
        wanted = replace(now, **fields)  # type: ignore[arg-type]
        with_runtime(start, runtime_of(wanted))
    except (LimitError, AssertionError):
        return False
    return True
