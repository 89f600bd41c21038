"""What an engine says of its prefix cache is what the cache holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.kv import held_prefixes
from service.engine.kv.cpu_offload import CpuOffloadIndex, Retention
from service.engine.kv.held_prefixes import HeldChanges, HeldPrefixes
from service.engine.kv.prefix import PrefixCache
from tests.support.worlds.engine_world import World


def _filled(cache: PrefixCache, blocks: int, first_token: int) -> list[bytes]:
    """Digests of a text of so many blocks of 4 tokens, computed and released."""
    digests: list[bytes] = []
    tokens = list(range(first_token, first_token + 4 * blocks))
    cache.extend(digests, cache.root(""), tokens)
    table = cache.grow(blocks, 0)
    for depth, (digest, block) in enumerate(zip(digests, table, strict=True), 1):
        cache.register(digest, block, "", depth)
    cache.pool.release(table)
    return digests


def _computed(cache: PrefixCache, digest: bytes, now_ns: int = 0, depth: int = 1) -> None:
    """A block is computed, and no request uses it any more."""
    block = cache.grow(1, now_ns)
    cache.register(digest, block[0], "", depth)
    cache.pool.release(block)


def _offloaded(
    blocks: int = 1, ttl_ns: int | None = None
) -> tuple[PrefixCache, HeldPrefixes, list[bytes]]:
    """A text of so many blocks, all of which are in CPU memory and none on the device."""
    cache = PrefixCache(blocks + 1, 4, "m", CpuOffloadIndex(blocks + 3, Retention(ttl_ns=ttl_ns)))
    held = cache.watch(1)
    digests = _filled(cache, blocks, 0)
    cache.pool.release(cache.grow(blocks + 1, 0))
    cache.copied(cache.take_copies())
    assert cache.match(digests, 0).host_digests == tuple(digests)
    held.take()
    return cache, held, digests


def test_each_second_block_of_a_text_is_told_and_taken_back_when_evicted() -> None:
    cache = PrefixCache(8, 4, "m")
    held = cache.watch(2)
    first = _filled(cache, 6, 0)
    assert held.take() == HeldChanges(True, tuple(first[1::2]), ())

    second = _filled(cache, 6, 100)
    changes = held.take()

    assert changes.added == tuple(second[1::2])
    assert set(changes.removed) < set(first[1::2])
    assert held.digests == set(held.take(whole=True).added)
    still = cache.match(first, 0).blocks
    assert len(still) // 2 == len(held.digests & set(first))


def test_what_moves_to_host_memory_is_still_held() -> None:
    cache = PrefixCache(4, 4, "m", CpuOffloadIndex(2, Retention()))
    held = cache.watch(1)
    first = _filled(cache, 2, 0)
    cache.pool.release(cache.grow(4, 0))

    assert held.digests == set(first)


def test_what_is_taken_from_host_memory_is_not_held_until_it_is_computed_with() -> None:
    """Its sequence may end before, and then it is nowhere."""
    cache = PrefixCache(4, 4, "m", CpuOffloadIndex(2, Retention()))
    held = cache.watch(1)
    first = _filled(cache, 2, 0)
    cache.pool.release(cache.grow(4, 0))
    cache.copied(cache.take_copies())
    held.take()

    table = cache.acquire(cache.match(first, 0), 2, 0)
    assert not held.digests
    assert set(held.take().removed) == set(first)

    for depth, (digest, block) in enumerate(zip(first, table, strict=True), 1):
        cache.register(digest, block, "", depth)
    assert held.take() == HeldChanges(False, tuple(first), ())


def test_a_prefix_on_the_device_is_held_whatever_cpu_memory_drops() -> None:
    """Computed anew while a copy of it lay there whose time to live was over."""
    cache, held, (first, *_) = _offloaded(ttl_ns=10)
    in_use = cache.grow(1, 100)
    cache.register(first, in_use[0], "", 1)
    held.take()
    _computed(cache, b"another", now_ns=101)
    cache.pool.release(cache.grow(1, 102))  # the other one is evicted, into CPU memory

    assert cache.match([first], 102).blocks == tuple(in_use)
    assert first in held.digests
    assert first not in held.take().removed


def test_a_prefix_that_goes_back_to_host_memory_is_held_although_its_old_copy_is_dropped() -> None:
    cache, held, (first, *_) = _offloaded(ttl_ns=10)
    _computed(cache, first, now_ns=100)
    cache.pool.release(cache.grow(2, 101))

    cache.copied(cache.take_copies())
    assert cache.match([first], 102).host_digests == (first,)
    assert first in held.digests


def test_a_prefix_on_the_device_is_held_when_its_copy_is_taken_from_host_memory() -> None:
    """The block before it is there only, so both copies are taken."""
    cache, held, digests = _offloaded(blocks=2)
    for depth, digest in enumerate(digests, 1):
        _computed(cache, digest, depth=depth)
    cache.pool.release(cache.grow(2, 0))  # the first of the two is evicted

    match = cache.match(digests, 0)
    assert match.host_digests == tuple(digests)
    cache.acquire(match, 2, 0)
    assert cache.match(digests[1:], 0).blocks
    assert held.digests == {digests[1]}


def test_what_has_expired_in_host_memory_is_told_with_the_next_block_that_is_taken() -> None:
    """Although nothing is evicted any more; in parts, since it takes time."""
    cache, held, digests = _offloaded(blocks=100, ttl_ns=10)
    assert held.digests == set(digests)
    cache.pool.release(cache.grow(1, 11))
    assert 0 < len(held.digests) < len(digests)
    cache.pool.release(cache.grow(1, 11))

    assert set(held.take().removed) == set(digests)
    assert cache.next_expiry_ns is None


def test_an_idle_engine_drops_what_has_expired_and_says_so() -> None:
    """It wakes for that; and then it has nothing to wake for."""
    world = World(
        blocks_total=16, host_slots=8, max_model_tokens=64, retention=Retention(ttl_ns=10**9)
    )
    held = world.scheduler.prefix.watch(1)
    for first in (0, 500):
        world.submit(1, max_tokens=3, given=list(range(first, first + 58)))
        world.run()
    offloaded = held.digests
    world.scheduler.prefix.pool.forget_cached()
    held.take()

    for _ in range(10):
        if world.loop.wake_ns is None:
            break
        world.clock.advance(max(0, world.loop.wake_ns - world.clock.now_ns()))
        world.step()
    assert world.loop.wake_ns is None
    gone = set(held.take().removed)
    assert gone
    assert gone <= offloaded
    assert not any(world.scheduler.prefix.knows(digest) for digest in gone)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 6), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_when_expired_blocks_are_dropped_changes_no_decision(
    steps: list[tuple[int, int, int, int]],
) -> None:
    """An idle engine does so at times that no record shows, and a replay has to find the same."""
    caches = [
        PrefixCache(6, 4, "m", CpuOffloadIndex(5, Retention(ttl_ns=9, tenant_share=0.8)))
        for _ in range(2)
    ]
    now_ns = 0
    for text, blocks, passed_ns, dropped in steps:
        now_ns += passed_ns
        caches[1].drop_expired(now_ns, dropped)
        found = []
        for cache in caches:
            digests: list[bytes] = []
            tokens = [100 * text + number for number in range(4 * blocks)]
            cache.extend(digests, cache.root(""), tokens)
            match = cache.match(digests, now_ns)
            table = cache.acquire(match, blocks, now_ns)
            for depth, (digest, block) in enumerate(zip(digests, table, strict=True), 1):
                cache.register(digest, block, "", depth)
            copies = cache.take_copies()
            cache.copied(copies)
            cache.pool.release(table)
            cache.check()
            found.append((match, table, [(copy.kind, copy.block) for copy in copies]))
        assert found[0] == found[1]


def test_a_flush_is_told_as_a_whole() -> None:
    cache = PrefixCache(8, 4, "m")
    held = cache.watch(1)
    _filled(cache, 2, 0)
    held.take()
    cache.flush()

    assert held.take() == HeldChanges(True, (), ())


def test_a_message_is_bounded_and_the_next_ones_say_the_rest() -> None:
    held, most = HeldPrefixes(1), held_prefixes.MOST_DIGESTS
    digests = tuple(number.to_bytes(8, "big") for number in range(2 * most + 10))
    for digest in digests:
        held.came(digest, 1)
    said = [held.take(), held.take(), held.take()]

    assert [one.whole for one in said] == [True, False, False]
    assert [len(one.added) for one in said] == [most, most, 10]
    assert tuple(digest for one in said for digest in one.added) == digests
    assert not held.has_news


def test_what_nobody_takes_is_bounded() -> None:
    """What came and went again is said no more than once, and then everything anew."""
    held, most = HeldPrefixes(1), held_prefixes.MOST_DIGESTS
    held.take()
    held.came(b"stays", 1)
    for number in range(3 * most):
        digest = number.to_bytes(8, "big")
        held.came(digest, 1)
        held.went(digest)
        assert len(held._changed) <= most + 2
    held.take(whole=True)
    assert not held.has_news
    for number in range(most + 2):
        digest = number.to_bytes(8, "big")
        held.came(digest, 1)
        held.went(digest)

    assert held.take() == HeldChanges(True, (b"stays",), ())
