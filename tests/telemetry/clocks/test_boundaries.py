"""Fleets with wrong clocks: what is stated of a node's boundaries is true, and time adds up."""

from __future__ import annotations

import pytest

from telemetry.clocks.boundaries import ClockFinding, RemoteSpan
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.clocks.offset import HORIZON_NS, Exchange, OffsetTracker
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    RemoteAccount,
    RemoteAccounted,
    RemotePart,
    SequenceSent,
)
from telemetry.facts.reasons import EndReason
from telemetry.metrics.clock_metrics import clock_families
from tests.support.worlds.placed_spans import misstated, spans_of, sum_is_off_ns
from tests.support.worlds.skewed_fleet import MS, SECOND, SkewedFleet

REASON = EndReason.MAX_TOKENS


@pytest.mark.parametrize("wire_ns", [20_000, 3 * MS])
def test_thousands_of_requests_add_up_and_true_boundaries_lie_within_epsilon(
    wire_ns: int,
) -> None:
    """Clocks up to 100 s apart, drifting up to 200 ppm at rates that change, on wires with rare
    delays of many times the usual one."""
    located = 0
    for seed in range(5):
        fleet = SkewedFleet(seed, requests=200, wire_ns=wire_ns)
        clocks = FleetClocks()
        spans = spans_of(fleet, clocks)

        assert len(spans) == 200
        assert not clocks.steps
        for seq_id, span in spans.items():
            assert sum_is_off_ns(span) == 0
            assert misstated(span, fleet.truths[seq_id]) == []
            assert set(span.findings) <= {ClockFinding.CLOCK_UNBOUNDED, ClockFinding.WITHIN_DRIFT}
            located += span.received is not None
    assert located > 900


def test_with_steps_what_is_stated_is_true_but_for_the_time_until_a_step_is_found() -> None:
    """A step is found by the next exchange: at most a second and the wire later."""
    in_doubt = stated = 0
    for seed in range(8):
        fleet = SkewedFleet(seed, requests=200, with_jumps=True)
        clocks = FleetClocks()
        spans = spans_of(fleet, clocks)
        doubts = [(n.engine, n.step.since_ns, n.step.at_ns) for n in clocks.steps]
        for seq_id, span in spans.items():
            if span.remote_ns is not None:
                assert sum_is_off_ns(span) == 0
            is_in_doubt = any(
                engine == span.engine and since_ns < span.arrived_ns and span.sent_ns <= at_ns
                for engine, since_ns, at_ns in doubts
            )
            stated += span.received is not None
            in_doubt += is_in_doubt
            if not is_in_doubt:
                assert misstated(span, fleet.truths[seq_id]) == []
        for engine, jumped_ns in fleet.jumps_ns.items():
            for jump_ns in jumped_ns:
                if jump_ns < fleet.end_ns - 2 * SECOND:
                    assert any(e == engine and a < jump_ns <= b for e, a, b in doubts)
    assert stated > 700
    assert in_doubt > 60


class SteadyFleet(SkewedFleet):
    """No frame is much quicker than the others."""

    def _delay_ns(self) -> int:
        return 5 * MS + self.random.randrange(MS // 5)


def test_a_step_that_no_frame_shows_misplaces_nothing_that_begins_after_the_horizon() -> None:
    """Steps smaller than the round trip leave the intervals of before and after intersecting."""
    unseen = stated = 0
    for seed in range(3):
        fleet = SteadyFleet(seed, requests=1000, with_jumps=True, jump_range_ns=(6 * MS, 9 * MS))
        clocks = FleetClocks()
        spans = spans_of(fleet, clocks)
        unseen += sum(map(len, fleet.jumps_ns.values())) - clocks.steps_found
        for seq_id, span in spans.items():
            begin_ns = span.sent_ns - HORIZON_NS
            jumps_ns = fleet.jumps_ns.get(span.engine, [])
            if not any(begin_ns <= jump_ns <= span.arrived_ns for jump_ns in jumps_ns):
                stated += span.received is not None
                assert misstated(span, fleet.truths[seq_id]) == []
    assert unseen > 5
    assert stated > 1000


def test_a_sequence_is_not_placed_by_what_was_known_of_its_node_long_before() -> None:
    """A node of which nothing was heard since: a step in between would be seen by nobody."""
    clocks, sent_ns = FleetClocks(), HORIZON_NS + 1
    clocks.sampled(ClockSampled(300, "n", 1, 0, 10_100, 10_150))
    clocks.sent(SequenceSent(sent_ns, 1, "n", 1))
    node_ns = sent_ns + 10_000
    account = RemoteAccount(node_ns + 100, node_ns + 500, (RemotePart("gap", 400),))
    span = clocks.accounted(RemoteAccounted(sent_ns + 700, 1, "n", 1, REASON, account))

    assert span is not None
    assert span.findings == (ClockFinding.CLOCK_UNBOUNDED,)
    assert span.wire_ns == 300


class SwapsSigns(OffsetTracker):
    def add(self, exchange: Exchange) -> None:
        sent_ns, received_ns, node_sent_ns, arrived_ns = exchange
        super().add(
            Exchange(sent_ns, 2 * sent_ns - received_ns, 2 * arrived_ns - node_sent_ns, arrived_ns)
        )


class Broken(FleetClocks):
    """With trackers of another kind."""

    def __init__(self, kind: type[OffsetTracker], drift_ppm: int) -> None:
        super().__init__(drift_ppm)
        self._kind = kind

    def _tracker(self, node: tuple[str, int]) -> OffsetTracker:
        if node not in self._trackers:
            self._trackers[node] = self._kind(self.drift_ppm)
        return super()._tracker(node)


@pytest.mark.parametrize(
    "clocks", [Broken(SwapsSigns, 200), FleetClocks(0)], ids=["signs", "no widening"]
)
def test_a_fold_that_is_wrong_is_caught(clocks: FleetClocks) -> None:
    fleet = SkewedFleet(1, requests=200, wire_ns=20_000)
    spans = spans_of(fleet, clocks)
    found = [
        seq_id
        for seq_id, span in spans.items()
        if misstated(span, fleet.truths[seq_id]) or span.findings or clocks.steps
    ]

    assert len(found) > 20


def test_the_split_is_as_exact_as_the_quickest_frames() -> None:
    """Not as bad as the wire of the request itself, which may have waited long on one way."""
    clocks = FleetClocks(drift_ppm=0)
    clocks.sampled(ClockSampled(300, "n", 1, 0, 10_100, 10_150))  # 100 there, 150 back
    clocks.sent(SequenceSent(1000, 1, "n", 1))
    account = RemoteAccount(11_100, 11_500, (RemotePart("own_decode", 400),))
    span = clocks.accounted(RemoteAccounted(51_500, 1, "n", 1, REASON, account))

    assert span is not None
    assert span.wire_ns == 50_100
    assert span.split is not None
    assert span.split.out_ns + span.split.back_ns == 50_100
    assert abs(span.split.out_ns - 100) <= span.split.out_epsilon_ns <= 125


def accounted(at_ns: int, account: RemoteAccount | None, **more: int) -> RemoteSpan:
    """Of a sequence that was sent at 1000 to a node whose clock is 10,000 ahead."""
    clocks = FleetClocks()
    clocks.sampled(ClockSampled(300, "n", 1, 0, 10_100, 10_150))
    clocks.sent(SequenceSent(1000, 1, "n", 1))
    span = clocks.accounted(
        RemoteAccounted(at_ns, 1, "n", more.get("incarnation", 1), REASON, account)
    )
    assert span is not None
    assert set(span.findings) == {f for f, n in clocks.findings.items() if n}
    return span


def test_a_node_that_says_more_time_than_passed_is_told_apart_from_drift() -> None:
    remote_ns = 10 * SECOND
    account = RemoteAccount(11_000, 11_000 + remote_ns, (RemotePart("gap", remote_ns),))
    drifted = accounted(1000 + remote_ns - MS, account)
    wrong = accounted(1000 + remote_ns - 3 * MS, account)

    assert drifted.findings == (ClockFinding.WITHIN_DRIFT,)
    assert drifted.wire_ns == -MS
    assert drifted.split is None
    assert sum_is_off_ns(drifted) == 0
    assert ClockFinding.NEGATIVE_WIRE in wrong.findings
    assert (wrong.remote_ns, wrong.wire_ns, wrong.parts) == (None, None, ())


@pytest.mark.parametrize(
    "parts",
    [
        (RemotePart("gap", 399),),
        (RemotePart("gap", -1), RemotePart("base", 401)),
        tuple(RemotePart("gap", 1) for _ in range(400)),
    ],
    ids=["too little", "negative", "too many"],
)
def test_parts_that_do_not_add_up_are_a_finding_and_the_nodes_time_is_kept(
    parts: tuple[RemotePart, ...],
) -> None:
    span = accounted(1700, RemoteAccount(11_100, 11_500, parts))

    assert span.findings == (ClockFinding.PARTS_INCONSISTENT,)
    assert (span.remote_ns, span.wire_ns, span.parts) == (400, 300, ())
    assert sum_is_off_ns(span) == 0


@pytest.mark.parametrize(
    ("account", "more", "finding"),
    [
        (None, {}, ClockFinding.NO_ACCOUNT),
        (RemoteAccount(12, 11, ()), {}, ClockFinding.STAMPS_DISORDERED),
        (RemoteAccount(11, 12, (), 13), {}, ClockFinding.STAMPS_DISORDERED),
        (RemoteAccount(11, 11, ()), {"incarnation": 2}, ClockFinding.OTHER_INCARNATION),
    ],
)
def test_an_account_that_cannot_be_used_leaves_the_time_unobserved(
    account: RemoteAccount | None, more: dict[str, int], finding: ClockFinding
) -> None:
    span = accounted(1700, account, **more)

    assert span.findings[0] is finding
    assert (span.remote_ns, span.wire_ns, span.split) == (None, None, None)


def test_the_wire_is_whole_until_other_frames_bound_the_offset() -> None:
    """By its own four stamps a sequence could have spent the wire on either way."""
    clocks = FleetClocks()
    account = RemoteAccount(11_100, 11_500, (RemotePart("gap", 400),))
    for seq_id, is_split in ((1, False), (2, True)):
        clocks.sent(SequenceSent(1000, seq_id, "n", 1))
        span = clocks.accounted(RemoteAccounted(1700, seq_id, "n", 1, REASON, account))
        assert span is not None
        assert span.wire_ns == 300
        assert (span.split is not None) == is_split
        assert (ClockFinding.CLOCK_UNBOUNDED in span.findings) != is_split


def test_a_sequence_whose_start_is_not_known_has_no_span() -> None:
    assert FleetClocks().accounted(RemoteAccounted(5, 1, "n", 1, REASON)) is None


def test_what_was_found_is_counted_from_the_start() -> None:
    """Each finding has a series before it happens."""
    clocks = FleetClocks()
    spans_of(SkewedFleet(1, requests=200, with_jumps=True), clocks)
    shown = {
        (metric.name, *labels.values()): value
        for metric, samples in clock_families(clocks)
        for labels, value in samples
    }

    assert shown["phasescope_clock_steps",] == clocks.steps_found > 0
    for finding in ClockFinding:
        assert shown["phasescope_clock_findings", finding] == clocks.findings[finding]


def test_how_far_a_clock_is_known_is_said_while_its_node_is_heard_of() -> None:
    clocks = FleetClocks(drift_ppm=0)
    clocks.sampled(ClockSampled(300, "near", 1, 0, 10_100, 10_150))
    clocks.sampled(ClockSampled(9000, "far", 1, 0, 50, 50))
    assert clocks.epsilons_ns() == {"near": 125, "far": 4500}

    at_ns = 120 * SECOND
    clocks.sampled(ClockSampled(at_ns, "far", 1, at_ns - 11, at_ns, at_ns))
    assert clocks.epsilons_ns() == {"far": 6}  # nothing was heard of the other for two minutes
    (_, _, (_, shown)) = clock_families(clocks)
    assert shown == [({"engine": "far"}, 6e-9)]


def test_memory_is_bounded_whatever_nodes_there_are() -> None:
    clocks = FleetClocks()
    for number in range(10_000):
        clocks.sampled(ClockSampled(number + 2, f"n{number}", number, number, 0, 0))
    assert clocks.live < 5000
    clocks.sampled(ClockSampled(9, "n", 1, 10, 0, 0))
    assert clocks.findings == {ClockFinding.STAMPS_DISORDERED: 1}
