"""What an engine says of its prefix cache is what the cache holds."""

from __future__ import annotations

from service.engine.kv import held_prefixes
from service.engine.kv.cpu_offload import CpuOffloadIndex, Retention
from service.engine.kv.held_prefixes import HeldChanges, HeldPrefixes
from service.engine.kv.prefix import PrefixCache


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
