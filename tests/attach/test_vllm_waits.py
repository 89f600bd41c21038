"""Why sequences of vLLM have no row in a step."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from service.attach.inside.vllm_core.waits import Waits
from telemetry.facts.reasons import WaitReason
from tests.attach.vllm_core_world import Status, request, scheduler


def skips(
    world: SimpleNamespace,
    rows: dict[str, int],
    preempted: bool = False,
    is_throttled: bool = False,
) -> list[Any]:
    output = SimpleNamespace(
        num_scheduled_tokens=rows, total_num_scheduled_tokens=sum(rows.values())
    )
    everyone = [*world.running, *world.kv_holding_waiting, *world.waiting]
    known = {one.request_id: SimpleNamespace(seq_id=one.request_id) for one in everyone}
    found = Waits(world, Status).skips(output, known, preempted, is_throttled)
    return [(one.seq_id, one.reason) for one in found]


def test_the_head_of_the_queue_has_the_reason_that_binds() -> None:
    """Slots, then blocks after a preemption, then the budget, then blocks."""
    a, b, c = (request(name) for name in "abc")
    full = scheduler([a], [b, c], max_num_active_reqs=1)

    assert skips(full, {"a": 1}) == [("b", WaitReason.SEQS)]
    assert skips(scheduler([a], [b, c]), {"a": 1}, preempted=True) == [("b", WaitReason.KV)]
    assert skips(scheduler([a], [b, c]), {"a": 8}) == [("b", WaitReason.BUDGET)]
    assert skips(scheduler([a], [b, c]), {"a": 1}) == [("b", WaitReason.KV)]
    assert skips(scheduler([a], []), {"a": 1}) == []


def test_a_head_that_was_preempted_waits_for_its_own_blocks_again() -> None:
    """It had begun; one that has not waits for its first blocks."""
    a, lost = request("a"), request("b", status=Status.PREEMPTED)
    full = scheduler([a], [lost], max_num_active_reqs=1)

    assert skips(scheduler([a], [lost]), {"a": 1}) == [("b", WaitReason.PREEMPTED)]
    assert skips(scheduler([a], [lost]), {"a": 1}, True) == [("b", WaitReason.PREEMPTED)]
    assert skips(scheduler([a], [lost]), {"a": 8}) == [("b", WaitReason.BUDGET)]
    assert skips(full, {"a": 1}) == [("b", WaitReason.SEQS)]


def test_a_prompt_that_may_not_be_cut_waits_for_the_budget() -> None:
    """Without chunked prefill a prompt needs all of its tokens at once."""
    whole = SimpleNamespace(enable_chunked_prefill=False)
    world = scheduler([request("a")], [request("b")], scheduler_config=whole)

    assert skips(world, {"a": 1}) == [("b", WaitReason.BUDGET)]


def test_those_that_others_pass_are_not_the_head() -> None:
    """KV blocks from elsewhere are a reason of one sequence; a grammar has facts of its own."""
    remote = request("r", status=Status.WAITING_FOR_REMOTE_KVS)
    grammar = request("g", status=Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    draining = request("d", num_stale_output_tokens=1)
    world = scheduler([], [grammar, draining, request("b")], kv_holding_waiting=deque([remote]))

    assert skips(world, {"x": 8}) == [("r", WaitReason.REMOTE_KV), ("b", WaitReason.BUDGET)]


def test_a_running_sequence_without_a_row_waits_for_budget_or_blocks() -> None:
    """One whose last token is in a step already waits for nothing."""
    done = request("d", num_output_placeholders=1, num_computed_tokens=14)
    world = scheduler([request("a"), request("b"), done], [])

    assert skips(world, {"a": 8}) == [("b", WaitReason.BUDGET)]
    assert skips(world, {"a": 1}, preempted=True) == [("b", WaitReason.KV)]
    assert skips(world, {"a": 1}) == []


def test_a_paused_scheduler_or_a_limit_that_is_not_ours_gives_no_reason() -> None:
    """What is not known is not said."""
    a, b = request("a"), request("b", lora_request=object())

    assert skips(scheduler([a], [request("c")], pause_state=1), {"a": 1}) == []
    assert skips(scheduler([a], [b], lora_config=object()), {"a": 1}) == []


def test_a_limit_of_adapters_hides_no_other_limit() -> None:
    """Slots and the budget bind a sequence with an adapter as they bind others."""
    a, b = request("a"), request("b", lora_request=object())
    full = scheduler([a], [b], lora_config=object(), max_num_active_reqs=1)

    assert skips(full, {"a": 1}) == [("b", WaitReason.SEQS)]
    assert skips(scheduler([a], [b], lora_config=object()), {"a": 8}) == [("b", WaitReason.BUDGET)]


def test_all_loads_are_named_and_the_head_behind_them() -> None:
    """However many sequences wait for their blocks."""
    remote = [request(f"r{one}", status=Status.WAITING_FOR_REMOTE_KVS) for one in range(100)]
    world = scheduler([request("a")], [request("b")], kv_holding_waiting=deque(remote))
    world.max_num_active_reqs = 1
    found = skips(world, {"a": 1})

    assert len(found) == 101
    assert {reason for _, reason in found[:100]} == {WaitReason.REMOTE_KV}
    assert found[100] == ("b", WaitReason.SEQS)


def test_a_load_behind_a_head_that_waits_is_named() -> None:
    """One whose blocks have come waits for a slot, and before one whose blocks have not."""
    ready = request("a", num_computed_tokens=9)
    remote = request("r", status=Status.WAITING_FOR_REMOTE_KVS)
    world = scheduler([], [], kv_holding_waiting=deque([ready, remote]), max_num_active_reqs=0)

    assert skips(world, {}) == [("r", WaitReason.REMOTE_KV), ("a", WaitReason.SEQS)]


def test_one_that_a_connector_holds_back_is_not_the_head() -> None:
    """The scheduler goes on to the next one, which is."""
    held, after = request("d"), request("b")
    deferring = {"deferred_waiting": [held], "connector": object()}

    assert skips(scheduler([], [held], **deferring), {}) == []
    assert skips(scheduler([], [held, after], **deferring), {}) == [("b", WaitReason.KV)]


def test_one_that_was_held_back_before_is_the_head() -> None:
    """A sequence stays deferred until it runs: it may wait for blocks since, or for another limit,
    and one whose grammar was compiled was not held back by a connector."""
    held = request("d")
    deferring: dict[str, Any] = {"deferred_waiting": [held], "connector": object()}
    short = scheduler([], [held], **deferring)
    short.kv_cache_manager.block_pool.get_num_free_blocks = lambda: 0
    full = scheduler([], [held], **deferring, max_num_active_reqs=0)
    loaded = request("l", num_computed_tokens=9)

    assert skips(short, {}) == [("d", WaitReason.KV)]
    assert skips(full, {}) == [("d", WaitReason.SEQS)]
    assert skips(scheduler([], [held], deferred_waiting=[held]), {}) == [("d", WaitReason.KV)]
    deferring["deferred_waiting"] = [loaded]
    assert skips(scheduler([], [loaded], **deferring), {}) == [("l", WaitReason.KV)]


def test_a_prompt_that_is_left_to_a_step_of_all_ranks_waits_for_no_blocks() -> None:
    """Prompts are throttled on data-parallel ranks; a limit that binds anyway is named."""
    a, b = request("a"), request("b")

    assert skips(scheduler([a], [b]), {"a": 1}, is_throttled=True) == []
    assert skips(scheduler([a], [b]), {"a": 8}, is_throttled=True) == [("b", WaitReason.BUDGET)]


def test_a_sequence_in_another_stage_of_a_pipeline_waits_for_nothing() -> None:
    """Its tokens are in flight, or its turn comes in a later step; a prompt of which a part is in
    flight could have had more."""
    flying = request("f", num_computed_tokens=10)
    later = request("l", num_tokens=11, num_computed_tokens=10, next_decode_eligible_step=8)
    cut = request("c", num_computed_tokens=4)
    world = scheduler([request("a"), flying, later, cut], [], current_step=7)

    assert skips(world, {"a": 8}) == [("c", WaitReason.BUDGET)]
    world.current_step = 8
    assert skips(world, {"a": 8}) == [("l", WaitReason.BUDGET), ("c", WaitReason.BUDGET)]
