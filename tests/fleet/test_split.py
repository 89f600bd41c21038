"""Where a prompt is computed: what both ways are predicted to take, and which is taken."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from service.engine.inbox import SetStepCost
from service.fleet.transfer.split import LinkCost, PrefillPlace, choose
from telemetry.facts.fleet.kv_transfer_records import Way

COST = SetStepCost(
    base_ns=20_000_000, prefill_token_ns=200_000, decode_row_ns=1_000_000, context_token_ns=1_000
)
PLACE = PrefillPlace(
    cost=COST, cached_tokens=0, waiting_tokens=0, residents=0, context_tokens=0, chunk_tokens=256
)
LINK = LinkCost(token_bytes=23_000, bytes_per_ns=1.0, delay_ns=500_000, digest_byte_ns=1.0)
PLACES = st.builds(
    replace,
    st.just(PLACE),
    cached_tokens=st.integers(0, 3000),
    waiting_tokens=st.integers(0, 10_000),
    residents=st.integers(0, 200),
    context_tokens=st.integers(0, 100_000),
    chunk_tokens=st.integers(1, 2048),
)
LINKS = st.builds(
    replace,
    st.just(LINK),
    bytes_per_ns=st.floats(0.001, 100.0),
    delay_ns=st.integers(0, 10**9),
)
PROMPTS = st.integers(1, 4000)


def test_nobody_decodes_and_nobody_waits_so_it_is_computed_here() -> None:
    assert choose(1500, PLACE, PLACE, LINK).way is Way.LOCAL


def test_a_long_prompt_beside_many_who_decode_is_computed_elsewhere() -> None:
    busy = replace(PLACE, residents=16, context_tokens=16_000)
    split = choose(1500, busy, PLACE, LINK)

    assert split.way is Way.REMOTE
    assert split.harm_ns == 16 * 1500 * 200_000


def test_a_prompt_that_only_this_engine_computes_in_time_stays_here() -> None:
    """Whatever it takes from those who decode here, if their targets leave time for prompts."""
    target_ns = 1_000_000_000
    here = replace(PLACE, residents=16, context_tokens=16_000, has_time=True)
    late = replace(PLACE, waiting_tokens=10_000)
    both = choose(1500, here, late, LINK)

    assert both.local_ns < target_ns < both.remote_ns < both.local_ns + both.harm_ns
    assert both.way is Way.REMOTE
    assert choose(1500, here, late, LINK, target_ns).way is Way.LOCAL
    assert choose(1500, here, PLACE, LINK, target_ns).way is Way.REMOTE  # in time there, too
    assert choose(1500, here, late, LINK, both.local_ns - 1).way is Way.REMOTE  # in time nowhere
    assert choose(1500, replace(here, has_time=False), late, LINK, target_ns).way is Way.REMOTE


def test_a_prompt_that_is_cached_here_is_computed_here() -> None:
    busy = replace(PLACE, residents=4, context_tokens=4_000)

    assert choose(1500, busy, PLACE, LINK).way is Way.REMOTE
    assert choose(1500, replace(busy, cached_tokens=1490), PLACE, LINK).way is Way.LOCAL


def test_a_fast_link_hides_all_chunks_but_the_last() -> None:
    """A chunk of 256 tokens takes 71 ms to compute and 5.9 to send."""
    split = choose(1024, PLACE, PLACE, LINK)

    assert split.exposed_ns == 256 * 23_000


def test_a_slow_link_is_exposed_but_for_what_the_chunks_hide() -> None:
    slow = replace(LINK, bytes_per_ns=0.01)
    each_ns, chunk_ns = 256 * 23_000 * 100, 20_000_000 + 256 * 200_000

    assert choose(1024, PLACE, PLACE, slow).exposed_ns == 4 * each_ns - 3 * chunk_ns


@given(prompt=PROMPTS, local=PLACES, remote=PLACES, link=LINKS)
def test_the_cheaper_way_is_taken_and_a_tie_is_local(
    prompt: int, local: PrefillPlace, remote: PrefillPlace, link: LinkCost
) -> None:
    split = choose(prompt, local, remote, link)

    assert min(split.local_ns, split.harm_ns, split.remote_ns, split.exposed_ns) >= 0
    is_remote = split.remote_ns < split.local_ns + split.harm_ns
    assert split.way is (Way.REMOTE if is_remote else Way.LOCAL)


@given(prompt=PROMPTS, local=PLACES, remote=PLACES, link=LINKS, more=st.integers(1, 5000))
def test_what_makes_a_way_longer_does_not_make_it_the_choice(
    prompt: int, local: PrefillPlace, remote: PrefillPlace, link: LinkCost, more: int
) -> None:
    now = choose(prompt, local, remote, link)
    crowded = replace(remote, waiting_tokens=remote.waiting_tokens + more)
    slower = replace(link, bytes_per_ns=link.bytes_per_ns / 2)
    if now.way is Way.LOCAL:
        assert choose(prompt, local, crowded, link).way is Way.LOCAL
        assert choose(prompt, local, remote, slower).way is Way.LOCAL
    else:
        behind = replace(local, waiting_tokens=local.waiting_tokens + more)
        assert choose(prompt, behind, remote, link).way is Way.REMOTE
