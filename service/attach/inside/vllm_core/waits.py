"""Why live sequences of vLLM have no row in a step, read from the scheduler after it planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from telemetry.facts.reasons import WaitReason
from telemetry.facts.step_parts import Skip

_MOST_BLOCKED = 64  # waiting sequences that are looked at to find the first that could run


class Waits:
    """`statuses` is vLLM's enum RequestStatus."""

    def __init__(self, scheduler: Any, statuses: Any) -> None:
        self._scheduler = scheduler
        self._remote_kv = statuses.WAITING_FOR_REMOTE_KVS
        self._ready = (statuses.WAITING, statuses.PREEMPTED)

    def skips(self, output: Any, seq_ids: Mapping[str, Any], preempted: bool) -> tuple[Skip, ...]:
        """The running sequences without a row, those that wait for KV blocks from elsewhere, and
        last the head of the queue. `preempted`: this plan took blocks away from a sequence."""
        scheduler, rows = self._scheduler, output.num_scheduled_tokens
        left = scheduler.max_num_scheduled_tokens - output.total_num_scheduled_tokens
        found: list[tuple[Any, WaitReason]] = []
        if len(scheduler.running) > len(rows):
            found += self._running(rows, left, preempted)
        if scheduler.waiting or scheduler.kv_holding_waiting:
            found += self._waiting(left, preempted)
        return tuple(
            Skip(live.seq_id, reason, None)
            for request, reason in found
            if (live := seq_ids.get(request.request_id)) is not None
        )

    def _running(
        self, rows: Mapping[str, int], left: int, preempted: bool
    ) -> Iterator[tuple[Any, WaitReason]]:
        if left > 0 and not preempted:
            return  # each has all that it can have: its tokens are in a step that runs
        reason = WaitReason.KV if preempted else WaitReason.BUDGET
        for request in self._scheduler.running:
            if request.request_id not in rows and not _is_at_its_end(request):
                yield request, reason

    def _waiting(self, left: int, preempted: bool) -> Iterator[tuple[Any, WaitReason]]:
        scheduler = self._scheduler
        queue = chain(scheduler.kv_holding_waiting, scheduler.waiting)
        for request in islice(queue, _MOST_BLOCKED):
            if request.status == self._remote_kv:
                yield request, WaitReason.REMOTE_KV
            elif request.status in self._ready and not _is_draining(request):
                reason = self._reason_of_head(request, left, preempted)
                if reason is not None:
                    yield request, reason
                return

    def _reason_of_head(self, head: Any, left: int, preempted: bool) -> WaitReason | None:
        """As the scheduler's own loop decides. None: the scheduler is paused, or another limit
        binds that is not one of ours."""
        scheduler = self._scheduler
        slots = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        if scheduler.pause_state != 0 or (scheduler.lora_config and head.lora_request):
            return None
        if slots >= scheduler.max_num_active_reqs:
            return WaitReason.SEQS
        if preempted:
            return WaitReason.KV
        if left <= 0 or not self._fits_whole(head, left):
            return WaitReason.BUDGET
        return WaitReason.KV

    def _fits_whole(self, head: Any, left: int) -> bool:
        """Whether the prompt may be cut, or need not be."""
        may_cut = self._scheduler.scheduler_config.enable_chunked_prefill
        return bool(may_cut or head.num_tokens <= left)


def _is_at_its_end(request: Any) -> bool:
    """Its last token is in a step that runs already."""
    in_flight = request.num_output_placeholders
    end = request.num_prompt_tokens + request.max_tokens
    return bool(in_flight > 0 and request.num_computed_tokens + 2 - in_flight >= end)


def _is_draining(request: Any) -> bool:
    """It was preempted, and tokens from before are still to come."""
    return bool(request.num_stale_output_tokens and not request.drop_stale_output)
