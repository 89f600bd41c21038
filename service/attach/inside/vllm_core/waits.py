"""Why live sequences of vLLM have no row in a step, read from the scheduler after it planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from telemetry.facts.reasons import WaitReason
from telemetry.facts.step_parts import Skip

_MOST_HOLDERS = 1_024  # waiting sequences with KV blocks that are looked at
_MOST_BLOCKED = 64  # others that wait, looked at to find the first that could run


class Waits:
    """`statuses` is vLLM's enum RequestStatus. `lives` are the live sequences by vLLM's names."""

    def __init__(self, scheduler: Any, statuses: Any) -> None:
        self._scheduler = scheduler
        self._remote_kv = statuses.WAITING_FOR_REMOTE_KVS
        self._ready = (statuses.WAITING, statuses.PREEMPTED)
        self._preempted = statuses.PREEMPTED
        self._told: set[int] = set()  # who waited for remote KV in the last step

    def has_news(self, lives: Mapping[str, Any]) -> bool:
        """Whether others wait for KV blocks from elsewhere than in the last step. A plan without
        rows is a step only then: while nothing else runs, there are a thousand in a second."""
        return bool(lives) and set(self._remote(lives)) != self._told

    def skips(
        self, output: Any, lives: Mapping[str, Any], preempted: bool, is_throttled: bool = False
    ) -> tuple[Skip, ...]:
        """The running sequences without a row, those that wait for KV blocks from elsewhere, and
        last the head of the queue. `preempted`: this plan took blocks away from a sequence.
        `is_throttled`: it may have left prompts to a step in which other ranks have some too."""
        scheduler, rows = self._scheduler, output.num_scheduled_tokens
        left = scheduler.max_num_scheduled_tokens - output.total_num_scheduled_tokens
        found = [
            Skip(live.seq_id, reason, None)
            for request, reason in self._running(rows, left, preempted)
            if (live := lives.get(request.request_id)) is not None
        ]
        remote = self._remote(lives)
        self._told = set(remote)
        found += [Skip(seq_id, WaitReason.REMOTE_KV, None) for seq_id in remote]
        if scheduler.waiting or scheduler.kv_holding_waiting:
            head, why = self._head(left, preempted, is_throttled)
            if why is not None and (live := lives.get(head.request_id)) is not None:
                found.append(Skip(live.seq_id, why, None))
        return tuple(found)

    def _remote(self, lives: Mapping[str, Any]) -> list[int]:
        """The ids of sequences whose KV comes from elsewhere; they hold the blocks for it."""
        holders = self._scheduler.kv_holding_waiting
        if not holders:
            return []
        holders = getattr(holders, "_heap", holders)  # a priority queue is slow to read in order
        return [
            live.seq_id
            for request in islice(holders, _MOST_HOLDERS)
            if request.status == self._remote_kv
            and (live := lives.get(request.request_id)) is not None
        ]

    def _running(
        self, rows: Mapping[str, int], left: int, preempted: bool
    ) -> Iterator[tuple[Any, WaitReason]]:
        running = self._scheduler.running
        if (left > 0 and not preempted) or len(running) <= len(rows):
            return  # each has all that it can have: its tokens are in a step that runs
        reason = WaitReason.KV if preempted else WaitReason.BUDGET
        step = getattr(self._scheduler, "current_step", 0)
        for request in running:
            if request.request_id in rows or _is_at_its_end(request):
                continue
            if not _is_in_flight(request, step):
                yield request, reason

    def _head(
        self, left: int, preempted: bool, is_throttled: bool
    ) -> tuple[Any, WaitReason | None]:
        """The first that could run, and why it does not; None: that is not known."""
        scheduler = self._scheduler
        holders = islice(scheduler.kv_holding_waiting, _MOST_HOLDERS)
        for request in chain(holders, islice(scheduler.waiting, _MOST_BLOCKED)):
            if request.status not in self._ready or _is_draining(request):
                continue
            reason = self._reason_of_head(request, left, preempted, is_throttled)
            if reason is not WaitReason.KV:
                return request, reason
            if preempted or not self._was_passed(request):
                lost = request.status == self._preempted
                return request, WaitReason.PREEMPTED if lost else reason
        return None, None

    def _reason_of_head(
        self, head: Any, left: int, preempted: bool, is_throttled: bool
    ) -> WaitReason | None:
        """Why the head of the queue waits, as the scheduler's own loop decides. None: the scheduler
        is paused, or a limit may bind that is not one of ours."""
        scheduler = self._scheduler
        slots = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        if scheduler.pause_state != 0:
            return None
        if slots >= scheduler.max_num_active_reqs:
            return WaitReason.SEQS
        if preempted:
            return WaitReason.KV
        if left <= 0:
            return WaitReason.BUDGET
        if is_throttled or (scheduler.lora_config and head.lora_request):
            return None
        return WaitReason.KV if self._fits_whole(head, left) else WaitReason.BUDGET

    def _fits_whole(self, head: Any, left: int) -> bool:
        """Whether the prompt may be cut, or need not be."""
        may_cut = self._scheduler.scheduler_config.enable_chunked_prefill
        return bool(may_cut or head.num_tokens <= left)

    def _was_passed(self, request: Any) -> bool:
        """Whether the scheduler went on to the next one, as a connector does not know yet what it
        has of this one. That it was deferred does not say so alone: it stays among the deferred
        until it has a row. Where blocks are short, they are what it waits for."""
        scheduler = self._scheduler
        if request not in getattr(scheduler, "deferred_waiting", ()):
            return False
        is_asked = (
            request.num_computed_tokens == 0 and getattr(scheduler, "connector", None) is not None
        )
        if not is_asked and getattr(scheduler, "ec_connector", None) is None:
            return False
        free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return bool(free_blocks * scheduler.block_size >= request.num_tokens)


def _is_at_its_end(request: Any) -> bool:
    """Its last token is in a step that runs already."""
    in_flight = request.num_output_placeholders
    end = request.num_prompt_tokens + request.max_tokens
    return bool(in_flight > 0 and request.num_computed_tokens + 2 - in_flight >= end)


def _is_in_flight(request: Any, step: int) -> bool:
    """All its tokens are in steps that run already, in other stages of a pipeline; or its next one
    has its turn in a later step than `step`."""
    known = getattr(request, "num_tokens_with_spec", request.num_tokens)
    if known + request.num_output_placeholders <= request.num_computed_tokens:
        return True
    return bool(step < getattr(request, "next_decode_eligible_step", 0))


def _is_draining(request: Any) -> bool:
    """It was preempted, and tokens from before are still to come."""
    return bool(request.num_stale_output_tokens and not request.drop_stale_output)
