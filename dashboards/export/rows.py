"""Facts and timelines as rows of the tables in `columns`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from telemetry.facts.clock import WallAnchor
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.reasons import Phase
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloPolicy
from telemetry.stats.slo import judge

Row = tuple[Any, ...]
"""The values of a row, in the order of its table's columns."""


def request_row(
    timeline: RequestTimeline, policy: SloPolicy, anchor: WallAnchor, *, is_whole: bool
) -> Row:
    """A row of REQUESTS."""
    accepted, parsed, ended = timeline.accepted, timeline.parsed, timeline.ended
    target = policy.of(accepted.slo_class)
    sequences = timeline.sequences
    gaps_ns = [b - a for one in sequences for a, b in pairwise(one.token_ns)]
    account = timeline.account
    late = None if account is None else len(account.stalls) + account.stalls_cut
    return (
        accepted.request_id,
        accepted.trace_id,
        accepted.tenant,
        target.name,
        accepted.route,
        None if parsed is None else parsed.stream,
        timeline.outcome.value,
        ended.reason.value,
        ended.status,
        judge(timeline, target).value,
        _us(anchor, accepted.at_ns),
        accepted.at_ns,
        ended.at_ns,
        timeline.e2e_ns,
        timeline.ttft_ns,
        timeline.tpot_ns,
        max(gaps_ns, default=None),
        target.ttft_ns,
        target.itl_ns,
        *(timeline.phase_ns(phase) for phase in Phase),
        None if timeline.tokenized is None else timeline.tokenized.prompt_tokens,
        timeline.cached_tokens,
        ended.output_tokens,
        None if parsed is None else parsed.max_tokens,
        len(sequences),
        sum(len(one.chunks) for one in sequences),
        sum(len(one.preempted) for one in sequences),
        late,
        is_whole,
    )


def step_row(step: StepRecorded, engine: int, anchor: WallAnchor) -> Row:
    """A row of STEPS."""
    rows, device = step.rows, step.device
    return (
        engine,
        step.step_id,
        _us(anchor, step.begin_ns),
        step.begin_ns,
        step.committed_ns,
        step.committed_ns - step.begin_ns,
        step.planned_ns - step.begin_ns,
        step.launched_ns - step.planned_ns,
        step.forward_ns - step.launched_ns,
        step.sample_ns - step.forward_ns,
        step.collected_ns - step.sample_ns,
        step.committed_ns - step.collected_ns,
        len(rows),
        sum(not row.is_prefill for row in rows),
        sum(row.tokens for row in rows if row.is_prefill),
        sum(row.recompute_tokens for row in rows),
        sum(row.sampled for row in rows if not row.wasted),
        sum(row.wasted for row in rows),
        len(step.preempted),
        step.budget_tokens,
        step.target_ns,
        step.running,
        step.waiting,
        step.waiting_tokens,
        step.blocks_used,
        step.blocks_cached,
        step.blocks_total,
        step.mask_ns,
        step.masked_rows,
        None if device is None else device.busy_ns,
        None if device is None else device.bubble_ns,
        step.rank_skew_ns,
        step.score_ns,
        sum(row.scored for row in rows),
    )


def ledger_rows(timeline: RequestTimeline) -> Iterator[Row]:
    """The rows of LEDGER of one request; none where its ledger is not known."""
    if timeline.account is None:
        return
    for entry in timeline.account.ledger.entries:
        yield (
            timeline.accepted.request_id,
            timeline.ended.at_ns,
            entry.state.value,
            entry.reason,
            entry.part.value,
            entry.payer,
            entry.ns,
        )


def _us(anchor: WallAnchor, at_ns: int) -> int:
    return anchor.to_unix_ns(at_ns) // 1_000
