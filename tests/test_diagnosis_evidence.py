"""The sums behind a diagnosis, checked against streams whose harm can be counted by hand."""

from __future__ import annotations

import pytest
from engine_world import World
from facts import MS, decode, prefill, queued, sequence_ended, step, submitted

from diagnosis.evidence import EvidenceFold, Harm
from diagnosis.plain_step import PlainStepReference, least_squares
from diagnosis.rules import confidence, prefill_interference
from telemetry.records import Fact, Row, Skip, WaitReason

SEQS = WaitReason.SEQS


def harm_of(facts: list[Fact], now_ms: int) -> Harm:
    fold = EvidenceFold()
    fold.on_facts(facts)
    return fold.harm(now_ms * MS)


def mixed(step_id: int, begin: int, end: int, chunk: int, streams: int = 4) -> Fact:
    """`streams` decode rows beside a chunk of sequence 90."""
    rows = [decode(seq_id) for seq_id in range(streams)]
    return step(step_id, begin, end, [*rows, prefill(90, chunk, sampled=False)])


def test_the_queue_waits_for_what_binds_its_head() -> None:
    """Three wait through 20 ms, and all three are victims of the head's reason."""
    skips = (Skip(7, SEQS, None),)
    facts: list[Fact] = [
        *(queued(seq_id, at=0) for seq_id in (7, 8, 9)),
        step(0, 0, 20, [decode(1)], skips, waiting=3),
    ]
    harm = harm_of(facts, 20)

    assert harm.waiting_ns == {SEQS: 60 * MS}
    assert harm.waiters == {SEQS: frozenset({"seq-7", "seq-8", "seq-9"})}


def test_who_comes_after_a_wait_is_not_its_victim() -> None:
    """Sequence 8 arrives when 7 has been scheduled; 9 gives up while it waits."""
    facts: list[Fact] = [
        submitted("early", at=0, seq_id=7),
        queued(7, at=0),
        queued(9, at=0),
        step(0, 0, 20, [decode(1)], (Skip(7, SEQS, None),), waiting=2),
        sequence_ended(9, at=20),
        queued(8, at=21),
        step(1, 21, 40, [decode(1), prefill(7), prefill(8)]),
    ]
    harm = harm_of(facts, 40)

    assert harm.waiters == {SEQS: frozenset({"early", "seq-9"})}


def test_a_running_sequence_without_a_row_is_not_the_queue() -> None:
    """Its skip says BUDGET, but nobody waits in the queue for that."""
    facts: list[Fact] = [
        queued(7, at=0),
        step(0, 0, 10, [prefill(7, sampled=False)]),
        step(1, 10, 20, [decode(1)], (Skip(7, WaitReason.BUDGET, None),)),
    ]

    assert harm_of(facts, 20).waiting_ns == {}


def test_a_wait_is_forgotten_when_it_leaves_the_window() -> None:
    """A minute later neither time nor victims are left."""
    facts: list[Fact] = [
        queued(7, at=0),
        step(0, 0, 20, [decode(1)], (Skip(7, SEQS, None),), waiting=1),
        step(1, 20, 40, [decode(1), prefill(7)]),
    ]
    harm = harm_of(facts, 70_000)

    assert (harm.steps, harm.queued, harm.waiting_ns, harm.waiters) == (0, 0, {}, {})


@pytest.mark.parametrize("depth", [1, 2])
def test_overlapped_steps_count_time_once(depth: int) -> None:
    """At any pipeline depth the steps' lengths add up to the time that passed."""
    world = World(depth=depth, max_seqs=2)
    for _ in range(6):
        world.submit(8, 12)
    world.run()
    fold = EvidenceFold()
    fold.on_facts(world.facts)
    harm = fold.harm(world.clock.now_ns())

    assert harm.busy_ns == world.clock.now_ns()
    assert 0 < sum(harm.waiting_ns.values()) < 4 * world.clock.now_ns()


def test_interference_is_the_excess_over_a_plain_step_times_the_rows() -> None:
    """Plain steps of four take 20 ms; the mixed one takes 120 ms."""
    plain: list[Fact] = [
        step(i, 20 * i, 20 * i + 20, [decode(n) for n in range(4)]) for i in range(5)
    ]
    harm = harm_of([*plain, mixed(5, 100, 220, chunk=500)], 220)

    assert harm.plain_step_ns == 20 * MS
    assert harm.excesses == ((100 * MS, 4),)
    assert harm.interference_ns == 400 * MS
    assert harm.interference_victims == {"seq-0", "seq-1", "seq-2", "seq-3"}
    assert harm.interference_culprits == ("seq-90",)


def test_the_reference_is_of_the_same_batch_size() -> None:
    """Sixteen rows alone take 60 ms, so a mixed step of sixteen with 70 ms lost only 10."""
    steps = [(10 * MS, 1, 0)] * 50 + [(60 * MS, 16, 0)] * 3
    reference = PlainStepReference(steps)

    assert reference.span_ns(1) == 10 * MS
    assert reference.span_ns(16) == 60 * MS


def test_without_plain_steps_the_reference_is_fitted() -> None:
    """Each step took 5 ms, 1 ms a row and 0.1 ms a prompt token; none was without a prompt."""
    steps = [
        ((50 + 10 * rows + tokens) * MS // 10, rows, tokens)
        for rows in (1, 3, 6)
        for tokens in (32, 64, 256)
    ]
    reference = PlainStepReference(steps)

    for rows in (1, 2, 6):
        assert reference.span_ns(rows) == pytest.approx((5 + rows) * MS, rel=1e-6)


def test_what_cannot_be_known_is_not_a_reference() -> None:
    """Equal chunks in every step: nothing shows what the chunk costs."""
    assert PlainStepReference([(30 * MS, 4, 64)] * 20).span_ns(4) is None
    assert PlainStepReference([]).span_ns(1) is None


def test_dependent_columns_have_no_best_line() -> None:
    """The second column is twice the first."""
    assert least_squares([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0]) is None
    assert least_squares([[1.0, 1.0], [0.0, 2.0]], [3.0, 7.0]) == pytest.approx([3.0, 2.0])


def test_one_hiccup_is_not_interference_and_repeated_stalls_are() -> None:
    """The same loss per second, once as a single long step and once as many."""
    plain = [step(i, 20 * i, 20 * i + 20, [decode(n) for n in range(4)]) for i in range(50)]
    hiccup = [*plain, mixed(50, 1000, 7000, chunk=500)]
    stalls = [*plain, *(mixed(50 + i, 1000 + 600 * i, 1600 + 600 * i, 500) for i in range(10))]

    assert prefill_interference(harm_of(list(hiccup), 7000)) is None
    finding = prefill_interference(harm_of(list(stalls), 7000))
    assert finding is not None
    assert finding.victims == 4


def test_the_largest_contexts_are_named_when_blocks_run_out() -> None:
    """Sequence 2 holds most of the cache while the head waits for blocks."""
    rows = [decode(seq_id, context) for seq_id, context in ((1, 30), (2, 900), (3, 60))]
    facts: list[Fact] = [
        queued(7, at=0),
        step(0, 0, 20, rows, (Skip(7, WaitReason.KV, None),), waiting=1),
    ]

    assert harm_of(facts, 20).cache_holders == ("seq-2", "seq-3", "seq-1")


def test_recomputed_tokens_cost_their_share_of_the_step() -> None:
    """30 of 40 tokens had been computed before; three quarters of 80 ms are lost."""
    again = Row(5, True, 40, 0, 30, True, False)
    harm = harm_of([step(0, 0, 80, [again])], 80)

    assert (harm.recompute_tokens, harm.recompute_ns) == (30, 60 * MS)


def test_confidence_grows_with_margin_and_with_share_and_stays_below_one() -> None:
    """Half at the floor, when the finding explains everything."""
    assert confidence(1.0, 1.0) == 0.5
    by_margin = [confidence(margin, 0.6) for margin in (1, 2, 5, 20, 1000)]
    by_share = [confidence(4.0, share) for share in (0.0, 0.2, 0.7, 1.0)]

    assert by_margin == sorted(set(by_margin))
    assert by_share == sorted(set(by_share))
    assert by_margin[-1] < 1
