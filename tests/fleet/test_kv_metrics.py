"""What is counted of prompts that one engine computes and another decodes."""

from __future__ import annotations

from telemetry.facts.engine_records import SequenceEnded, SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvChunkPushed,
    KvFault,
    KvHeld,
    KvLinkEnd,
    KvLinkEnded,
    KvLinkOpened,
    KvLost,
    KvNoMover,
    KvPromptTaken,
    KvReleased,
    KvReserved,
    KvSealed,
    KvSplitChosen,
    KvStagingFull,
    KvVerified,
    KvWayAgreed,
    RemoteParts,
    Way,
)
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.records import EngineDied, FactsLost
from telemetry.metrics.catalog import kv_transfer as catalog
from telemetry.metrics.kv_metrics import KvMetrics
from telemetry.metrics.metric import Metric
from tests.support.worlds.facts import MS, TRACE


def values(metrics: KvMetrics, metric: Metric) -> dict[str, float]:
    """By the label's value; the empty one without a label."""
    (found,) = [values for one, values in metrics.families() if one is metric]
    return {next(iter(labels.values()), ""): value for labels, value in found if value}


def queued(seq_id: int, epoch: int) -> SequenceQueued:
    return SequenceQueued(seq_id, 0, 0, 9, 4, "", receives_kv=epoch)


def test_a_transfer_is_counted_where_it_is_decoded() -> None:
    metrics = KvMetrics()
    split = KvSplitChosen(1, 0, 9, 0, 0, Way.REMOTE, 4 * MS, 0, 3 * MS, 0)
    remote = RemoteParts(1 * MS, 4 * MS, 2 * MS, 3 * MS)
    metrics.take([split, queued(1, 7), KvReserved(1, 1 * MS, 0, 7, 3, 0)])
    assert values(metrics, catalog.QUARANTINED) == {"": 3}
    metrics.take([KvSealed(1, 9 * MS, 7, 3, 300, remote), KvVerified(1, 12 * MS, 7, 3, 0)])
    metrics.take([KvAdmitted(1, 12 * MS, 0, 7)])
    metrics.take([SequenceEnded(1, 14 * MS, 0, EndReason.MAX_TOKENS, 1, 0)])

    assert values(metrics, catalog.QUARANTINED) == {}
    assert values(metrics, catalog.TRANSFERS) == {"admitted": 1}
    assert values(metrics, catalog.BYTES) == {"received": 300}
    assert values(metrics, catalog.SECONDS) == {
        "kv.reserve": 0.001, "kv.queue": 0.001, "kv.prefill": 0.004, "kv.transfer": 0.002,
        "kv.wire": 0.001, "kv.seal": 0.003, "kv.wait": 0.002,
    }  # fmt: skip
    assert values(metrics, catalog.HIDDEN_SECONDS) == {"": 0.003}
    assert values(metrics, catalog.SPLITS) == {"remote": 1}
    assert values(metrics, catalog.REGRET_SECONDS) == {"remote": 0.008}  # 12 ms, where 4 were said
    assert metrics.rates.digest_byte_ns == 3 * MS / 300


def test_what_comes_to_nothing_has_its_reason_and_its_blocks_come_back() -> None:
    metrics = KvMetrics()
    metrics.take([queued(1, 7), KvReserved(1, MS, 0, 7, 3, 0)])
    metrics.take([KvVerified(1, 2 * MS, 7, 3, 1), KvLost(1, 2 * MS, 0, 7, KvFault.CORRUPT)])
    assert values(metrics, catalog.QUARANTINED) == {"": 3}
    metrics.take([KvReleased(3 * MS, 0, 7, 3)])

    assert values(metrics, catalog.QUARANTINED) == {}
    assert values(metrics, catalog.TRANSFERS) == {"corrupt": 1}
    assert values(metrics, catalog.CORRUPT) == {"": 1}
    assert values(metrics, catalog.SECONDS) == {"kv.reserve": 0.001, "kv.lost": 0.001}


def test_kv_that_came_and_is_given_up_before_it_was_compared_is_forgotten() -> None:
    metrics = KvMetrics()
    metrics.take([queued(1, 7), KvReserved(1, MS, 0, 7, 3, 0)])
    metrics.take([KvSealed(1, 9 * MS, 7, 3, 300, RemoteParts(MS, MS, MS, MS))])
    assert metrics.open
    metrics.take([SequenceEnded(1, 10 * MS, 0, EndReason.DISCONNECT, 0, 0)])
    metrics.take([KvReleased(11 * MS, 0, 7, 3)])

    assert not metrics.open
    assert values(metrics, catalog.TRANSFERS) == {"cancelled": 1}


def test_a_prompt_is_counted_where_it_is_computed_until_its_engine_ends() -> None:
    metrics = KvMetrics()
    for seq_id in (1, 2):
        metrics.take([KvPromptTaken(seq_id, 0, seq_id, "d", 9, "r", TRACE, "b" * 16)])
    metrics.take([KvChunkPushed(1, 3 * MS, 1, 0, 2, 600, 1 * MS), KvHeld(1, 4 * MS, 0, 1, 2)])
    metrics.take([SequenceEnded(1, 4 * MS, 0, EndReason.MAX_TOKENS, 1, 0)])
    metrics.take([SequenceEnded(2, 4 * MS, 0, EndReason.DISCONNECT, 0, 0)])
    assert values(metrics, catalog.HELD) == {"": 2}
    metrics.take([KvLinkOpened(0, "d"), KvLinkEnded(5, "", KvLinkEnd.WRONG_KEY, 3)])
    metrics.take([KvWayAgreed(1, "d", "nixl"), KvWayAgreed(2, "e", "nixl", KvNoMover.DIFFERS)])
    metrics.take([KvStagingFull(5, 2), EngineDied(6, None, "", 0)])

    assert values(metrics, catalog.HELD) == {}
    assert values(metrics, catalog.PROMPTS) == {"computed": 1, "disconnect": 1}
    assert values(metrics, catalog.BYTES) == {"sent": 600}
    assert values(metrics, catalog.LINKS) == {
        "opened": 1,
        "wrong_key": 3,
        "over_nixl": 1,
        "over_tcp": 1,
    }
    assert values(metrics, catalog.STAGING_FULL) == {"": 2}
    assert metrics.rates.bytes_per_ns == 600 / (2 * MS)


def test_nothing_is_in_the_books_for_ever_because_a_release_was_lost() -> None:
    metrics = KvMetrics()
    metrics.take([queued(1, 7), KvReserved(1, MS, 0, 7, 3, 0)])
    metrics.take([KvLost(1, 2 * MS, 0, 7, KvFault.CANCELLED)])
    metrics.take([KvPromptTaken(2, 0, 8, "d", 9, "r", TRACE, "b" * 16), KvHeld(2, MS, 0, 8, 4)])
    metrics.take([FactsLost(2 * MS, FactSource.GATEWAY, 1)])
    assert values(metrics, catalog.QUARANTINED) == {"": 3}
    assert values(metrics, catalog.HELD) == {"": 4}
    metrics.take([FactsLost(3 * MS, FactSource.ENGINE, 2)])

    assert values(metrics, catalog.QUARANTINED) == values(metrics, catalog.HELD) == {}
    assert not metrics.open
