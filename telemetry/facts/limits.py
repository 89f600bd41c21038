"""The limits that may change while an engine runs, by the names of `serve`'s flags in snake case.

`max_batched_tokens` is "auto" or a number. Under "auto" its cap is `max_auto_tokens`, which is None
otherwise. The structs here are what `/debug/limits` answers.
"""

from __future__ import annotations

import msgspec

from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.engine_start import RuntimeLimits

AUTO = "auto"
LimitValue = bool | int | float | str | dict[str, float] | None
_FIELDS = tuple(one.name for one in msgspec.structs.fields(RuntimeLimits))


class ChangedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that is not what it was at the start."""

    value: LimitValue
    at_start: LimitValue


class SetBy(msgspec.Struct, frozen=True, kw_only=True):
    """Who set a limit, when (by the machine's clock, and so many seconds ago), and why."""

    by: str
    why: str
    at_unix_s: float
    ago_s: float


class LimitInForce(msgspec.Struct, frozen=True, kw_only=True):
    """One limit; `changed` is None where it is what it was at the start."""

    value: LimitValue
    at_start: LimitValue
    changed: SetBy | None


class LimitsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """One change: the new value of each limit that changed."""

    limits: dict[str, LimitValue]
    set: SetBy


class LimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in force by name, and the last changes, oldest first."""

    limits: dict[str, LimitInForce]
    changes: list[LimitsChanged]


def limits_at_start(started: EngineStarted) -> RuntimeLimits:
    """The limits that an engine began with."""
    return RuntimeLimits(**{name: getattr(started, name) for name in _FIELDS})


def with_limits(started: EngineStarted, limits: RuntimeLimits) -> EngineStarted:
    """The start of an engine that had begun with `limits`, for readers of limits that know no
    other fact."""
    values = {name: getattr(limits, name) for name in _FIELDS}
    return msgspec.structs.replace(started, **values)


def named(limits: RuntimeLimits) -> dict[str, LimitValue]:
    """The limits by name."""
    target_ns = limits.itl_target_ns
    return {
        "max_batched_tokens": AUTO if limits.auto_budget else limits.budget_tokens,
        "max_auto_tokens": limits.budget_tokens if limits.auto_budget else None,
        "max_num_seqs": limits.max_seqs,
        "itl_target_ms": None if target_ns is None else target_ns / 1e6,
        "queue_limit": limits.queue_limit_requests,
        "queue_limit_tokens": limits.queue_limit_tokens,
        "tenant_max_seqs": limits.tenant_max_seqs,
        "tenant_queue_limit": limits.tenant_queue_limit,
        "tenant_weights": limits.tenant_weights,
        "prefix_cache": limits.prefix_cache,
        "speculative_tokens": limits.draft_tokens,
        "order": "slo" if limits.slo_order else "arrival",
        "refuse_late": limits.refuse_late,
    }


def changed_names(before: RuntimeLimits, after: RuntimeLimits) -> tuple[str, ...]:
    """The limits that differ. That there is a cap, which only "auto" has, is no change of its own
    where the budget stays as large."""
    was, is_now = named(before), named(after)
    same_cap = not after.auto_budget or before.budget_tokens == after.budget_tokens
    return tuple(
        name
        for name, value in is_now.items()
        if value != was[name] and not (name == "max_auto_tokens" and same_cap)
    )


def changed_limits(started: EngineStarted, limits: RuntimeLimits) -> dict[str, ChangedLimit]:
    """The limits that are not what they were at the start."""
    begun = limits_at_start(started)
    was, is_now = named(begun), named(limits)
    return {
        name: ChangedLimit(value=is_now[name], at_start=was[name])
        for name in changed_names(begun, limits)
    }
