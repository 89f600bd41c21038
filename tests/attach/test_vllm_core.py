"""The parts of the observer of vLLM's engine core that need no vLLM; with a real one, see
tests_engines."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.attach.inside.block_aliases import BlockAliases
from service.attach.inside.guard import Guard, where
from service.attach.inside.versions import (
    VLLM_TESTED,
    UnknownEngine,
    check_seams,
    check_version,
)
from service.attach.inside.vllm_core.ends import end_reason
from service.attach.inside.vllm_core.live import Live, committed_row, planned_row
from service.attach.inside.vllm_core.observer import Observer
from telemetry.facts.reasons import EndReason
from tests.attach.vllm_core_world import Status, request, scheduler


def live(one: SimpleNamespace, **fields: Any) -> Live:
    return Live(one.request_id, 1, one, 10, **fields)


def test_a_prompt_in_chunks_is_prefill_until_its_last_token_gives_one() -> None:
    """vLLM has counted the tokens of the plan already when it is looked at."""
    one = request(num_computed_tokens=6)
    first = planned_row(live(one, prefill_tokens=10), 6)
    one.num_computed_tokens = 10
    last = planned_row(live(one, prefill_tokens=10), 4)
    one.num_computed_tokens = 11
    decode = planned_row(live(one, prefill_tokens=10), 1)

    assert first[1:] == (True, 6, 0, 0, False)
    assert last[1:] == (True, 4, 6, 0, True)
    assert decode[1:] == (False, 1, 10, 0, True)


@given(
    context=st.integers(0, 50),
    tokens=st.integers(1, 50),
    before=st.integers(0, 100),
)
def test_recomputed_are_the_tokens_that_were_there_before_the_preemption(
    context: int, tokens: int, before: int
) -> None:
    """Counted one by one."""
    one = request(num_computed_tokens=context + tokens)
    row = planned_row(live(one, prefill_tokens=200, computed_tokens=before), tokens)

    assert row[4] == sum(at < before for at in range(context, context + tokens))


@pytest.mark.parametrize(
    ("sampled", "ended", "prefill_tokens", "expected"),
    [
        ({"a": 1}, False, 10, (1, False)),  # a token
        ({"a": 3}, False, 10, (3, False)),  # two draft tokens were accepted
        ({}, True, 10, (1, True)),  # it had ended before the outcome came
        ({}, False, 10, (1, True)),  # what was in flight was dropped
        ({"a": 0}, False, 10, (1, True)),  # a decode that gave nothing
        ({}, False, 99, (0, False)),  # a chunk that is not the last
        ({}, True, 99, (0, True)),  # the same, of a sequence that has ended
    ],
)
def test_what_a_row_gave(
    sampled: dict[str, int], ended: bool, prefill_tokens: int, expected: tuple[int, bool]
) -> None:
    """(new tokens, whether they were wasted)."""
    one = live(request(num_computed_tokens=12), prefill_tokens=prefill_tokens, has_ended=ended)
    row = committed_row(planned_row(one, 1), sampled)

    assert (row.sampled, row.wasted) == expected


@pytest.mark.parametrize(
    ("status", "fields", "reason"),
    [
        (Status.FINISHED_STOPPED, {}, EndReason.EOS),
        (Status.FINISHED_STOPPED, {"stop_reason": 7}, EndReason.STOP_TOKEN),
        (Status.FINISHED_LENGTH_CAPPED, {"num_output_tokens": 5}, EndReason.MAX_TOKENS),
        (Status.FINISHED_LENGTH_CAPPED, {"num_output_tokens": 4}, EndReason.CONTEXT),
        (Status.FINISHED_ABORTED, {}, EndReason.DISCONNECT),
        (Status.FINISHED_IGNORED, {}, EndReason.CONTEXT),
        (Status.FINISHED_REPETITION, {}, EndReason.STOP_STRING),
        (Status.FINISHED_ERROR, {}, EndReason.INTERNAL),
    ],
)
def test_each_end_of_vllm_has_a_reason(
    status: Status, fields: dict[str, Any], reason: EndReason
) -> None:
    """Each status that is an end has one of our reasons."""
    assert end_reason(live(request(status=status, **fields)), Status, False) is reason


def test_the_end_of_all_and_a_refused_grammar_have_reasons_of_their_own() -> None:
    """What the status alone does not tell."""
    aborted, failed = request(status=Status.FINISHED_ABORTED), request(status=Status.FINISHED_ERROR)

    assert end_reason(live(aborted), Status, True) is EndReason.SHUTDOWN
    assert end_reason(live(failed, awaits_grammar=True), Status, False) is EndReason.GRAMMAR_INVALID


def test_the_same_block_has_the_same_number_and_the_hash_is_not_in_it() -> None:
    """Two sequences with the same prefix share its numbers."""
    aliases = BlockAliases()

    assert aliases.of([b"x", b"y"]) == (0, 1)
    assert aliases.of([b"x", b"z"]) == (0, 2)


def test_old_blocks_are_forgotten() -> None:
    """The latest are kept; a number is never given to another block."""
    aliases = BlockAliases()
    first = aliases.of([b"first"])[0]
    others = aliases.of([str(number).encode() for number in range(65_536)])
    again = aliases.of([b"first"])[0]

    assert len({first, again, *others}) == 65_538


def test_a_hook_is_turned_off_after_a_few_errors() -> None:
    """Once, with the place of the error and without its text."""
    said: list[tuple[str, str, bool]] = []
    guard = Guard("schedule", lambda *what: said.append(what), is_vital=True)
    for _ in range(9):
        try:
            raise KeyError("a prompt")
        except KeyError as error:
            guard.failed(error)

    assert not guard.is_on
    assert [(hook, is_all) for hook, _, is_all in said] == [("schedule", True)]
    assert said[0][1].startswith(f"KeyError at {Path(__file__).name}:")
    assert "prompt" not in said[0][1]


def test_the_place_of_an_error_is_where_it_was_raised() -> None:
    """The innermost frame."""

    def inner() -> None:
        raise ValueError("of a request")

    with pytest.raises(ValueError, match="of a request") as raised:
        inner()
    assert where(raised.value).endswith("in inner")


@pytest.mark.parametrize("version", ["0.30.2", "0.33.0", "1.0", "dev", ""])
def test_a_version_that_no_test_has_seen_is_not_observed(version: str) -> None:
    """The reason names the versions that are known."""
    with pytest.raises(UnknownEngine, match=VLLM_TESTED[0]):
        check_version("vllm", version, VLLM_TESTED)


@pytest.mark.parametrize("version", ["0.32.0", "0.31.4", "0.32.1+cpu"])
def test_patch_releases_of_tested_versions_are_observed(version: str) -> None:
    """Their minor version counts."""
    check_version("vllm", version, VLLM_TESTED)


GARBAGE = st.sampled_from(
    [None, 0, "x", (), {}, object(), request(), SimpleNamespace(total_num_scheduled_tokens=3)]
)
HOOKS = ["planned", "collected", "committed", "added", "finishing", "finished", "preempting"]
HOOKS += ["ended", "received", "compiled"]


def observer_of_nothing() -> Observer:
    world = scheduler(
        [],
        [],
        block_size=16,
        parallel_config=SimpleNamespace(data_parallel_index=0),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
    )
    return Observer(world, Status, Path("/nowhere/attach.sock"), "0.32.0")


def test_grammars_of_clients_that_left_meanwhile_take_little_memory() -> None:
    """However long the ids are that these clients chose, and however many they are."""
    observer = observer_of_nothing()
    tracemalloc.start()
    for number in range(20_000):
        observer.compiled(0, (request(f"{number}-{'x' * 1_000}"),), {})
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    observer.close()
    assert kept_bytes < 5_000_000


@given(calls=st.lists(st.tuples(st.sampled_from(HOOKS), st.lists(GARBAGE, max_size=4))))
def test_whatever_a_hook_gets_it_raises_nothing(calls: list[tuple[str, list[Any]]]) -> None:
    """Wrong values, wrong types, too few and too many of them."""
    observer = observer_of_nothing()
    for hook, arguments in calls:
        assert getattr(observer, hook)(*arguments) is None
    observer.close()


class Host:
    def step(self, plan: object, outcome: object, more: int = 0) -> None: ...


def test_seams_must_be_there_and_take_what_is_read() -> None:
    """More parameters at the end do no harm."""
    check_seams(Host, {"step": ("plan", "outcome")})
    with pytest.raises(UnknownEngine, match="no method leap"):
        check_seams(Host, {"leap": ()})
    with pytest.raises(UnknownEngine, match="takes"):
        check_seams(Host, {"step": ("outcome", "plan")})
