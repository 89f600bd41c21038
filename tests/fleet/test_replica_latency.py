"""Latencies by engine and role are those that one histogram of all their values would have."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from service.gateway.fleet.replica_latency import MEASURES, ReplicaLatency
from telemetry.facts.reasons import EndReason
from telemetry.numbers.hdr import distribution_of
from telemetry.requests.phases import Measure, RequestTimeline, SequenceTimeline
from tests.support.worlds.facts import MS, accepted, request_ended

NOW_MS = 5_000
ROLES = {"a": "prefill", "b": "decode", "c": "decode"}


def timeline(engine: str, gaps_ms: list[int], reason: EndReason = EndReason.MAX_TOKENS) -> object:
    """A request that arrived at 0, and ended at NOW_MS."""
    tokens = tuple(at * MS for at in accumulate(gaps_ms))
    sequence = SequenceTimeline(
        1, 0, 0, 0, tokens, NOW_MS * MS, reason, (), (), (), sent_ns=0, engine=engine
    )
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
    replicas = ReplicaLatency()
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
    replicas = ReplicaLatency()
    replicas.on_timeline(timeline("old", [3, 4]))  # type: ignore[arg-type]
    replicas.on_timeline(timeline("a", [3], EndReason.DISCONNECT))  # type: ignore[arg-type]
    view = replicas.view((NOW_MS + 1) * MS, ROLES)

    assert [(one.name, one.role) for one in view.engines] == [("old", "gone")]
    assert set(view.fleet.latencies) == {one.value for one in MEASURES}
