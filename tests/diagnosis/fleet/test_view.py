"""What is merged over replicas is what one server would have said of all their requests."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosis.fleet.view import ReplicaState, diagnose_fleet
from diagnosis.symptoms import Symptom
from telemetry.requests.classes import workload_class
from telemetry.requests.phases import Measure, Measured
from telemetry.stats.histogram_report import distributions, merge, report
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo_merge import merged_slo
from tests.support.worlds.metrics_world import MetricsWorld, one_request
from tests.support.worlds.replicas import (
    encoded,
    finding,
    healthy,
    idle,
    replica,
    slo,
    unreachable,
)

SECOND = 1_000_000_000
values_ms = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@settings(max_examples=25, deadline=None)
@given(shares=st.lists(values_ms, min_size=2, max_size=4))
def test_latencies_of_a_fleet_are_those_of_one_histogram_of_everything(
    shares: list[list[int]],
) -> None:
    """Over the wire, and over classes that only some replicas saw."""
    pooled, fleet = Histograms(), []
    for number, values in enumerate(shares):
        own = Histograms()
        workload = workload_class("chat", f"tenant-{number % 2}", 300, 0)
        for value in values:
            measured = Measured(Measure.TTFT, value * 1_000_000, SECOND, workload)
            own.on_measured(measured)
            pooled.on_measured(measured)
        body = encoded(report(distributions(own, "1m", SECOND), "1m", SECOND))
        fleet.append(replica(f"r{number}", latencies=merge([body])))

    found = diagnose_fleet(fleet).latencies["ttft"]
    assert found == pooled.window_percentiles(SECOND, 60)["ttft"]


def test_promises_of_a_fleet_are_those_of_one_server_that_judged_all_requests() -> None:
    """Counts, goodput and burn of every window."""
    late = one_request([300], slo_class="voice")
    in_time = one_request([20], request_id="r2", seq_id=2, slo_class="voice")
    apart = [MetricsWorld().feed(late), MetricsWorld().feed(in_time), MetricsWorld()]
    pooled = MetricsWorld().feed(late).feed(in_time).metrics.slo.report(SECOND)
    found = merged_slo(world.metrics.slo.report(SECOND) for world in apart)

    assert found == pooled.classes
    (voice,) = [one for one in found if one.name == "voice"]
    assert (voice.windows[0].attempted, voice.windows[0].good) == (2, 1)


def test_classes_of_one_name_with_other_targets_stay_apart() -> None:
    """Merged, their burn would be that of no promise."""
    (chat,) = slo().classes
    slower = msgspec.structs.replace(chat, ttft_target_ns=2 * chat.ttft_target_ns)
    other = msgspec.structs.replace(slo(), classes=(slower,))

    assert [one.windows[0].attempted for one in merged_slo([slo(), slo(), other])] == [120, 60]


def test_findings_of_one_symptom_and_culprit_tenant_are_one() -> None:
    """The worst first; another tenant is another finding."""
    s = Symptom.PREFILL_INTERFERENCE
    fleet = diagnose_fleet(
        [
            replica("a", finding(s, 100.0, "q1"), tenants={"q1": "bot"}),
            replica("b", finding(s, 900.0, "q2"), tenants={"q2": "bot"}),
            replica("c", finding(s, 500.0, "q3"), tenants={"q3": "blue"}),
        ]
    )
    first, second = fleet.findings

    assert (first.tenant, first.replicas, first.harm_ms) == ("bot", ("b", "a"), 1000.0)
    assert first.culprits == ("q2 at b", "q1 at a")
    assert first.worst.harm_ms == 900.0
    assert (second.tenant, second.replicas) == ("blue", ("c",))


def test_the_culprit_of_unfairness_is_itself_a_tenant() -> None:
    fleet = diagnose_fleet([replica("a", finding(Symptom.UNFAIRNESS, 10.0, "flood"))])

    assert fleet.findings[0].tenant == "flood"


def test_every_replica_is_a_line_whatever_its_state() -> None:
    """One that does not answer says why, and counts in nothing that is merged."""
    loading = replica("loading", ready=False, running=0, latencies={}, slo=None)
    fleet = diagnose_fleet([*healthy(1), idle("spare"), loading, unreachable("gone")])

    assert [line.state for line in fleet.replicas] == [
        ReplicaState.SERVING, ReplicaState.IDLE, ReplicaState.NOT_READY, ReplicaState.UNREAD,
    ]  # fmt: skip
    assert "refused" in fleet.replicas[3].why
    assert fleet.unread == 1
    assert fleet.latencies["ttft"].count == 60


def test_nothing_but_unread_replicas_is_an_answer_too() -> None:
    fleet = diagnose_fleet([unreachable("a"), unreachable("b")])

    assert fleet.said == (
        "not enough to say: 0 of 2 replicas had traffic in the last minute (2 without an answer)",
    )
    assert (fleet.findings, fleet.slo, fleet.latencies) == ((), (), {})
