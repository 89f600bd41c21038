"""When a sequence that has its KV from another engine begins: as soon as there is a place in the
batch. It passes the queue, because it has its blocks already, and what waits may need these."""

from __future__ import annotations

from service.engine.admission import Limits
from service.engine.planning.plan_builder import PlanBuilder
from service.engine.remote_kv.received import ReceivedKv
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable
from telemetry.facts.reasons import WaitReason


def start_received(
    received: ReceivedKv, table: SequenceTable, limits: Limits, builder: PlanBuilder
) -> None:
    """Plan the first decode row of each sequence that is ready; say why the others wait."""
    for request in received.ready:
        if request.awaits_grammar:
            continue
        reason = _binding_reason(request, table, limits, builder)
        if reason is not None:
            builder.skip(request, reason)
            continue
        builder.start(table.start_received(request))
        builder.add_decode(request)
    for request in received.waiting:
        builder.skip(request, WaitReason.REMOTE_KV)


def _binding_reason(
    request: Request, table: SequenceTable, limits: Limits, builder: PlanBuilder
) -> WaitReason | None:
    limit = limits.tenant_max_seqs
    if len(table.running) >= limits.max_seqs:
        return WaitReason.SEQS
    if limit is not None and table.running_of(request.submit.tenant) >= limit:
        return WaitReason.POLICY
    return None if builder.budget_left else WaitReason.BUDGET
