"""The settings that are tried: one line for each, with its values, coarse ones first.

The lines are ordered by what the record shows, so that in plain cases the first one holds the
answer. A line whose setting cannot have played a part is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diagnosis.settings_search.answer import ClassForecast
from diagnosis.settings_search.pressure import Pressure
from diagnosis.settings_search.settings import CHUNKED_PREFILL, FAIRNESS, KV_BLOCKS, values_of
from diagnosis.settings_search.thresholds import (
    DOMINANT,
    LEAST_BUDGET,
    MOST_BUDGET,
    POOR_DRAFTS,
    PREEMPTING,
)
from service.engine.admission import Limits
from service.engine.fairness import Policy
from telemetry.facts.limits import AUTO, LimitValue
from telemetry.facts.reasons import WaitReason

Values = Mapping[str, LimitValue]


@dataclass(frozen=True, slots=True)
class Line:
    """One setting. `weight` is how much the record speaks for it. With `scale` the best of the
    coarse values is refined: halves and doubles of it are tried."""

    name: str
    weight: float
    values: tuple[Values, ...]
    scale: bool = False

    def finer(self, best: Values) -> list[Values]:
        """Values around the best one."""
        value = best.get(self.name)
        if not self.scale or not isinstance(value, int) or isinstance(value, bool):
            return []
        return [{self.name: value // 2}, {self.name: 2 * value}] if value > 1 else []


def lines_of(
    start: Limits, now: Limits, pressure: Pressure, present: Mapping[str, ClassForecast]
) -> list[Line]:
    """The most promising first."""
    late, slow = _misses(present)
    found = [
        _budget(start, now, pressure, late, slow),
        _slots(now, pressure, late, slow),
        _drafts(now, pressure),
        _tenants(now, pressure),
        _one("prefix_cache", not now.prefix_cache and pressure.knows_prefixes, True, 0.8),
        _one("order", not now.slo_order, "slo", 0.5 if len(present) > 1 else 0.2),
        _one("order", now.slo_order, "arrival", 0.1),
        _one("itl_target_ms", now.itl_target_ns is not None, None, 0.7),
        _one("refuse_late", not now.refuse_late, True, 0.05 if pressure.queues else 0.0),
        _chunks(start, now, slow),
        _one(FAIRNESS, now.policy is Policy.FCFS and pressure.dominant > 0, Policy.VTC.value, 0.4),
        _cache(now, pressure),
        _queue(now, pressure),
    ]
    lines = [
        _started_first(line, start, now) for line in found if line is not None and line.weight > 0
    ]
    return sorted(lines, key=lambda line: -line.weight)


def _started_first(line: Line, start: Limits, now: Limits) -> Line:
    """What the engine started with comes before all other values of a limit that has changed
    since: somebody has chosen it, and it stays the choice where others are no better."""
    first = values_of(start).get(line.name)
    if first in (AUTO, values_of(now).get(line.name)):
        return line
    rest = [one for one in line.values if one != {line.name: first}]
    return replace(line, values=({line.name: first}, *rest))


def unknown_of(start: Limits, now: Limits, pressure: Pressure) -> dict[str, str]:
    """Settings that no replay can forecast, and why."""
    found: dict[str, str] = {}
    if not now.prefix_cache and not pressure.knows_prefixes:
        found["prefix_cache"] = "while it is off, the record does not say which prompts begin alike"
    if start.draft_tokens and not now.draft_tokens:
        found["speculative_tokens"] = "nobody knows which drafts would have been accepted"
    return found


def _misses(present: Mapping[str, ClassForecast]) -> tuple[float, float]:
    """The shares of late first tokens and of slow tokens in the misses."""
    missed = sum(one.missed for one in present.values())
    late = min(missed, sum(one.late_first_tokens for one in present.values()))
    return (late / missed, 1 - late / missed) if missed else (0.0, 0.0)


def _budget(
    start: Limits, now: Limits, pressure: Pressure, late: float, slow: float
) -> Line | None:
    """Smaller where prompts make decodes wait, larger where prompts wait for the budget."""
    if not now.chunked_prefill:
        return None
    ladder = [tokens for tokens in _powers(LEAST_BUDGET, MOST_BUDGET, 4) if tokens >= now.max_seqs]
    if slow > late:
        ladder = [tokens for tokens in reversed(ladder) if tokens < now.step_tokens] + [
            tokens for tokens in ladder if tokens > now.step_tokens
        ]
    values: list[Values] = []
    if not now.auto_budget:
        values.append(_auto(start, now))
    values += [{"max_batched_tokens": tokens} for tokens in ladder]
    weight = slow * (0.3 + pressure.mixed) + late * pressure.wait(WaitReason.BUDGET)
    return Line("max_batched_tokens", 0.1 + weight, tuple(values), scale=True)


def _auto(start: Limits, now: Limits) -> Values:
    """The automatic budget, with the largest cap that a running server may be given."""
    most = max(start.budget_tokens, start.budget_ceiling_tokens, 2 * now.max_seqs)
    return {"max_batched_tokens": AUTO, "max_auto_tokens": most}


def _chunks(start: Limits, now: Limits, slow: float) -> Line | None:
    """Chunks, and a budget for them: that of an engine without chunks has room for whole prompts,
    and bounds nothing."""
    if now.chunked_prefill:
        return None
    on: Values = {CHUNKED_PREFILL: True}
    budgets = [_auto(start, now), *({"max_batched_tokens": tokens} for tokens in (256, 64))]
    values = [on, *({**on, **budget} for budget in budgets)]
    return Line(CHUNKED_PREFILL, 0.5 + slow, tuple(values))


def _slots(now: Limits, pressure: Pressure, late: float, slow: float) -> Line:
    """More where requests wait for a place in the batch, fewer where the batch makes steps long."""
    fewer = [now.max_seqs // 2, now.max_seqs // 4]
    more = [2 * now.max_seqs, 4 * now.max_seqs]
    wants_more = pressure.wait(WaitReason.SEQS)
    ordered = [*more, *fewer] if late * wants_more > slow else [*fewer, *more]
    return Line(
        "max_num_seqs",
        0.1 + late * wants_more + 0.5 * slow + 0.5 * min(1.0, PREEMPTING * pressure.preempting),
        tuple({"max_num_seqs": count} for count in ordered if count >= 1),
        scale=True,
    )


def _drafts(now: Limits, pressure: Pressure) -> Line | None:
    """Only fewer: of drafts that were not made, nobody knows how many would have been accepted."""
    if not now.draft_tokens or pressure.acceptance is None:
        return None
    return Line(
        "speculative_tokens",
        1.5 if pressure.acceptance < POOR_DRAFTS else 0.3,
        tuple({"speculative_tokens": count} for count in {0, now.draft_tokens // 2}),
    )


def _tenants(now: Limits, pressure: Pressure) -> Line | None:
    """Where one tenant has most of the work."""
    if pressure.dominant < DOMINANT:
        return None
    most = now.max_seqs if now.tenant_max_seqs is None else now.tenant_max_seqs
    quarters = [most * part // 4 for part in (1, 2, 3)]
    counts = sorted({max(1, count) for count in quarters} - {most})
    return Line(
        "tenant_max_seqs",
        0.9,
        tuple({"tenant_max_seqs": count} for count in counts),
        scale=True,
    )


def _cache(now: Limits, pressure: Pressure) -> Line:
    waits = pressure.wait(WaitReason.KV, WaitReason.PREEMPTED)
    values = tuple({KV_BLOCKS: now.blocks_total * times} for times in (2, 4, 8))
    return Line(KV_BLOCKS, waits + min(1.0, PREEMPTING * pressure.preempting), values)


def _queue(now: Limits, pressure: Pressure) -> Line | None:
    if not pressure.refused:
        return None
    values = ({"queue_limit": 4 * now.queue_limit_requests},)
    return Line("queue_limit", pressure.refused, values)


def _one(name: str, applies: bool, value: LimitValue, weight: float) -> Line | None:
    return Line(name, weight, ({name: value},)) if applies else None


def _powers(least: int, most: int, ratio: int) -> Sequence[int]:
    found: list[int] = []
    while least <= most:
        found.append(least)
        least *= ratio
    return found
