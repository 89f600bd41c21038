"""Latencies by engine and role are those that one histogram of all their values would have."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from service.gateway.fleet.known_names import MOST_NAMES
from service.gateway.fleet.replica_latency import MEASURES, ReplicaLatency
from service.gateway.fleet.wire_time import WireTime
from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.reasons import EndReason
from telemetry.metrics.catalog import fleet as catalog
from telemetry.numbers.hdr import distribution_of
from telemetry.requests.phases import Measure, RequestTimeline, SequenceTimeline
from tests.support.worlds.facts import MS, accepted, request_ended

NOW_MS = 5_000
ROLES = {"a": "prefill", "b": "decode", "c": "decode"}


def timeline(engine: str, gaps_ms: list[int], reason: EndReason = EndReason.MAX_TOKENS) -> object:
    """A request that arrived at 0, and ended at NOW_MS."""
    tokens = tuple(at * MS for at in accumulate(gaps_ms))
    sequence = SequenceTimeline(
        1, 0, 0, 0, tokens, NOW_MS * MS, reason, (), (), (), sent_ns=0, engine=engine,
        remote=RemoteSpan(
            seq_id=1, engine=engine, incarnation=1, sent_ns=0, arrived_ns=NOW_MS * MS, epoch=0,
            wire_ns=2 * MS,
        ),
    )  # fmt: skip
    ended = request_ended("r", NOW_MS, reason)
    return RequestTimeline(
        accepted=accepted("r"), parsed=None, tokenized=None, ended=ended,
        sequences=(sequence,), phases=(),
    )  # fmt: skip


asked = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 900), min_size=1, max_size=5)),
    min_size=1,
    max_size=12,
)


@given(asked)
def test_merging_is_exact(requests: list[tuple[str, list[int]]]) -> None:
    replicas = ReplicaLatency(lambda: ROLES)
    for engine, gaps_ms in requests:
        replicas.on_timeline(timeline(engine, gaps_ms))  # type: ignore[arg-type]
    view = replicas.view((NOW_MS + 1) * MS, ROLES)

    for group in (*view.engines, *view.roles, view.fleet):
        mine = [
            gaps_ms for engine, gaps_ms in requests if group.name in ("all", engine, ROLES[engine])
        ]
        gaps = [one * MS for gaps_ms in mine for one in gaps_ms[1:]]
        firsts = [gaps_ms[0] * MS for gaps_ms in mine]
        assert group.latencies[Measure.ITL] == distribution_of(gaps).percentiles()
        assert group.latencies[Measure.TTFT] == distribution_of(firsts).percentiles()
        assert group.latencies[Measure.E2E].count == len(mine)
    assert {one.name for one in view.engines} == {engine for engine, _ in requests}


def test_an_engine_that_is_gone_has_no_role_and_others_requests_count_for_nobody() -> None:
    replicas = ReplicaLatency(lambda: ROLES)
    replicas.on_timeline(timeline("old", [3, 4]))  # type: ignore[arg-type]
    replicas.on_timeline(timeline("a", [3], EndReason.DISCONNECT))  # type: ignore[arg-type]
    view = replicas.view((NOW_MS + 1) * MS, ROLES)

    assert [(one.name, one.role) for one in view.engines] == [("old", "gone")]
    assert set(view.fleet.latencies) == {one.value for one in MEASURES}


def test_after_3000_engines_came_and_went_the_one_that_serves_has_its_own_line() -> None:
    """And nothing that was counted of the others is lost to the counters."""
    now = {"stays": "decode", "new": "decode"}
    replicas, wire = ReplicaLatency(lambda: now), WireTime(lambda: now)
    for name in ("stays", *(f"n{number}" for number in range(3000)), "stays", "new"):
        replicas.on_timeline(timeline(name, [3, 4]))  # type: ignore[arg-type]
        wire.on_timeline(timeline(name, [3, 4]))  # type: ignore[arg-type]
    view = replicas.view((NOW_MS + 1) * MS, now)
    counted = dict(wire.families())
    sequences = {one["engine"]: count for one, count in counted[catalog.WIRE_SEQUENCES]}
    seconds = {one["engine"]: value for one, value in counted[catalog.WIRE_SECONDS]}

    counts = {one.name: one.latencies[Measure.E2E].count for one in view.engines}
    assert (counts["stays"], counts["new"], len(counts)) == (2, 1, MOST_NAMES)
    assert (sequences["stays"], sequences["new"]) == (2, 1)
    assert sum(sequences.values()) == 3003
    assert round(1000 * sum(seconds.values())) == 3003 * 2
    assert len(sequences) <= MOST_NAMES + 1
