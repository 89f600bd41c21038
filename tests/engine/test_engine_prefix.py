"""Prefix reuse: what is found, by whom, what it costs, and what a larger cache would have."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.inbox import FlushCache
from service.engine.kv.cpu_offload import CpuOffloadIndex, Retention
from service.engine.kv.prefix import PrefixCache
from service.engine.plan import CopyKind
from telemetry.facts.engine_records import CacheFlushed, SequenceAdmitted
from tests.support.worlds.engine_world import World

PROMPT = list(range(18))


def admitted(world: World) -> list[tuple[int, int]]:
    """(hit, ghost) tokens of each admission, in order."""
    return [
        (fact.hit_tokens, fact.ghost_tokens)
        for fact in world.facts
        if isinstance(fact, SequenceAdmitted)
    ]


def ask(world: World, prompt: list[int] | None = None, **fields: object) -> int:
    seq_id = world.submit(1, max_tokens=3, given=PROMPT if prompt is None else prompt, **fields)
    world.run()
    return seq_id


def test_a_second_request_computes_only_what_follows_the_shared_full_blocks() -> None:
    world = World(block_tokens=4, cache_identity="m")
    ask(world)
    ask(world)

    assert admitted(world) == [(0, 0), (16, 0)]
    rows = [row for step in world.steps for row in step.rows if row.is_prefill]
    assert sum(row.tokens for row in rows) == 18 + 2


def test_the_last_token_of_a_prompt_is_computed_even_if_the_whole_prompt_is_cached() -> None:
    world = World(block_tokens=4)
    ask(world, PROMPT[:16])
    ask(world, PROMPT[:16])

    assert admitted(world) == [(0, 0), (12, 0)]


def test_another_tenant_another_salt_and_an_opt_out_get_no_hit() -> None:
    world = World(block_tokens=4)
    ask(world, tenant="a")
    ask(world, tenant="b")
    ask(world, tenant="a", cache_salt="x")
    ask(world, tenant="a", cache_prefix=False)
    ask(world, tenant="a")

    assert [hit for hit, _ in admitted(world)] == [0, 0, 0, 0, 16]


def test_a_request_without_prefix_caching_leaves_no_cached_block() -> None:
    world = World(block_tokens=4)
    ask(world, cache_prefix=False)

    assert world.scheduler.pool.cached == 0


def test_another_cache_identity_has_other_block_hashes_for_the_same_tokens() -> None:
    chains: list[list[bytes]] = []
    for identity in ("model-a", "model-b"):
        prefix = PrefixCache(8, 4, identity)
        digests: list[bytes] = []
        prefix.extend(digests, prefix.root("t"), PROMPT)
        chains.append(digests)

    assert len(chains[0]) == 4
    assert not set(chains[0]) & set(chains[1])


def test_a_flushed_cache_gives_no_hit_and_reports_its_dropped_blocks() -> None:
    world = World(block_tokens=4)
    ask(world)
    world.inbox.put(FlushCache())
    ask(world)

    assert [hit for hit, _ in admitted(world)] == [0, 0]
    (flushed,) = [fact for fact in world.facts if isinstance(fact, CacheFlushed)]
    assert flushed.blocks == 5


def test_outputs_are_cached_too_so_a_conversation_goes_on_where_it_stopped() -> None:
    world = World(block_tokens=4)
    first = world.submit(1, max_tokens=8, given=PROMPT)
    world.run()
    ask(world, [*PROMPT, *world.outputs[first], 5])

    assert admitted(world)[-1][0] == 24


def test_the_ghost_cache_counts_hits_of_a_larger_cache() -> None:
    world = World(block_tokens=4, blocks_total=16, max_model_tokens=64)
    ask(world)
    ask(world, list(range(100, 161)))
    ask(world)

    assert admitted(world)[-1] == (0, 16)


def test_a_preempted_sequence_finds_its_own_blocks_again_while_they_are_cached() -> None:
    world = World(block_tokens=4)
    seq_id = world.submit(1, max_tokens=6, given=PROMPT)
    world.step()
    world.step()
    request = world.scheduler.table.live[seq_id]
    world.scheduler.table.preempt(request, world.clock.now_ns())
    world.run()

    assert admitted(world)[-1][0] == 16
    assert sum(row.recompute_tokens for step in world.steps for row in step.rows) <= 3


def test_evicted_blocks_come_back_from_cpu_offload() -> None:
    world = World(block_tokens=4, blocks_total=16, max_model_tokens=64, host_slots=8)
    ask(world)
    ask(world, list(range(100, 161)))
    ask(world)

    last = [fact for fact in world.facts if isinstance(fact, SequenceAdmitted)][-1]
    assert (last.hit_tokens, last.host_tokens) == (16, 16)
    assert sum(step.copied_blocks for step in world.steps) >= 8


def test_no_tenant_uses_more_of_the_cpu_offload_than_its_share() -> None:
    tier = CpuOffloadIndex(8, Retention(tenant_share=0.25))
    for index in range(6):
        slot, _ = tier.put(bytes([index]), "greedy", 0)
        assert slot is not None
        tier.check()

    assert tier.used == 2
    assert [tier.has(bytes([index]), 0) for index in range(6)] == [False] * 4 + [True] * 2


def test_cpu_offload_drops_blocks_older_than_their_time_to_live() -> None:
    tier = CpuOffloadIndex(4, Retention(ttl_ns=100))
    tier.put(b"a", "", 0)

    assert tier.has(b"a", 100)
    assert not tier.has(b"a", 101)
    assert tier.put(b"b", "", 200) == (2, [b"a"]) or tier.used == 1


@settings(max_examples=60, deadline=None)
@given(
    tails=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 14), st.integers(1, 6)), min_size=1, max_size=12
    ),
    host_slots=st.sampled_from([0, 3]),
    depth=st.sampled_from([1, 2]),
)
def test_texts_never_depend_on_what_is_cached(
    tails: list[tuple[int, int, int]], host_slots: int, depth: int
) -> None:
    """The simulated device refuses any row whose context is not its own text."""
    world = World(
        block_tokens=4, blocks_total=17, max_model_tokens=64, depth=depth, host_slots=host_slots
    )
    for family, shared, tail in tails:
        prompt = [family * 50 + i for i in range(shared)] + [900 + i for i in range(tail)]
        world.submit(1, max_tokens=4, given=prompt)
        world.step()
    world.run()

    assert world.scheduler.pool.used == 0


def test_copies_save_before_they_load() -> None:
    prefix = PrefixCache(2, 4, "m", CpuOffloadIndex(1, Retention()))
    digests: list[bytes] = []
    prefix.extend(digests, prefix.root(""), list(range(8)))
    first = prefix.grow(2, 0)
    prefix.register(digests[0], first[0], "")
    prefix.pool.release(first)
    prefix.pool.release(prefix.grow(2, 0))
    saved = prefix.take_copies()
    assert [copy.kind for copy in saved] == [CopyKind.SAVE]
    assert not prefix.match(digests, 0).host_digests, "its step may still fail"
    prefix.copied(saved)

    match = prefix.match(digests, 0)
    table = prefix.acquire(match, 1, 0)

    assert match.host_digests == (digests[0],)
    assert [(c.kind, c.block) for c in prefix.take_copies()] == [(CopyKind.LOAD, table[0])]
