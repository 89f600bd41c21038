"""Block aliases: equal where texts begin alike, without any other information."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lab.simulation.scenarios import small_limits
from service.engine.inbox import Submit
from service.engine.kv.block_aliases import BlockAliases
from service.engine.plan import SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.facts.engine_records import SequenceQueued, SequenceRefused

Prompt = list[int]
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=20)


def queued(given: list[tuple[Prompt, str, str]]) -> list[SequenceQueued]:
    """What the scheduler records of prompts, each with a tenant and a salt."""
    scheduler = Scheduler(small_limits())
    for seq_id, (prompt, tenant, salt) in enumerate(given):
        command = Submit(
            seq_id=seq_id,
            prompt=prompt,
            max_tokens=1,
            sampling=SamplingParams(),
            tenant=tenant,
            cache_salt=salt,
        )
        scheduler.submit(command, 0)
    return [fact for fact in scheduler.take_facts(0) if isinstance(fact, SequenceQueued)]


@given(st.lists(st.tuples(prompts, st.sampled_from("ab"), st.sampled_from("xy")), max_size=6))
def test_two_prompts_share_an_alias_for_each_common_full_block(
    given: list[tuple[Prompt, str, str]],
) -> None:
    size = small_limits().block_tokens
    facts = queued(given)
    for one, (prompt, tenant, salt) in zip(facts, given, strict=True):
        assert one.blocks is not None
        assert len(one.blocks) == len(prompt) // size
        for other, (rival, *namespace) in zip(facts, given, strict=True):
            assert other.blocks is not None
            for count in range(1, min(len(one.blocks), len(other.blocks)) + 1):
                alike = prompt[: count * size] == rival[: count * size]
                alike = alike and namespace == [tenant, salt]
                assert (one.blocks[:count] == other.blocks[:count]) is alike


def test_aliases_are_numbered_in_order_of_appearance() -> None:
    """So an alias cannot be compared with a known text."""
    (first, second) = queued([([7] * 8, "", ""), ([9] * 8, "", "")])
    assert (first.blocks, second.blocks) == ((0, 1), (2, 3))


def test_prompts_that_are_not_cached_have_no_aliases() -> None:
    scheduler = Scheduler(small_limits())
    command = Submit(
        seq_id=0, prompt=[1] * 8, max_tokens=1, sampling=SamplingParams(), cache_prefix=False
    )
    scheduler.submit(command, 0)
    (fact,) = scheduler.take_facts(0)
    assert isinstance(fact, SequenceQueued)
    assert fact.blocks is None


def test_who_is_refused_leaves_all_that_a_larger_queue_needs() -> None:
    scheduler = Scheduler(small_limits(queue_limit_requests=1))
    for seq_id in range(2):
        command = Submit(
            seq_id=seq_id,
            prompt=[1] * 8,
            max_tokens=5,
            sampling=SamplingParams(),
            tenant="a",
            priority=seq_id,
        )
        scheduler.submit(command, 3)
    refused = [fact for fact in scheduler.take_facts(3) if isinstance(fact, SequenceRefused)]
    assert [(f.seq_id, f.prompt_tokens, f.max_tokens, f.tenant, f.priority) for f in refused] == [
        (1, 8, 5, "a", 1)
    ]


def test_aliases_are_bounded_and_the_least_recently_used_is_dropped() -> None:
    aliases = BlockAliases(3)
    assert [aliases.of([one]) for one in (b"a", b"b", b"c", b"a")] == [(0,), (1,), (2,), (0,)]
    assert aliases.of([b"d"]) == (3,)  # b was used longest ago
    assert [aliases.of([one]) for one in (b"a", b"c", b"d", b"b")] == [(0,), (2,), (3,), (4,)]


def test_the_alias_of_a_digest_that_is_known_stays_however_many_others_come() -> None:
    known = {b"a", b"b"}
    aliases = BlockAliases(4, known.__contains__)
    assert aliases.of([b"a", b"b"]) == (0, 1)
    for number in range(100):
        aliases.of([f"{number}".encode()])
    assert aliases.of([b"a", b"b"]) == (0, 1)
    known.clear()
    for number in range(100):
        aliases.of([f"again {number}".encode()])
    assert aliases.of([b"a"]) != (0,)


def test_blocks_after_a_dropped_alias_get_new_aliases_too() -> None:
    """A replay, which makes texts of the numbers, would not find it either."""
    aliases = BlockAliases(3)
    assert aliases.of([b"a", b"b"]) == (0, 1)
    assert aliases.of([b"b"], parent=0) == (1,)
    aliases.of([b"x"])
    aliases.of([b"b"], parent=0)
    aliases.of([b"y"])  # a was used longest ago

    assert aliases.of([b"a", b"b"]) == (4, 5)
