"""Worlds of replicas: which of them is bad, or what they are sent, or that nothing can be said."""

from __future__ import annotations

import pytest

from diagnosis.fleet.judge import FleetVerdict, Scope, judge
from diagnosis.fleet.replica import Replica
from diagnosis.fleet.sides import Side, side_of
from diagnosis.fleet.words import sentences
from diagnosis.symptoms import Finding, MissedPromise, MissForm, Symptom
from diagnosis.verdicts.classifier import Diagnosis, diagnoser_failed
from tests.support.worlds.replicas import (
    finding,
    healthy,
    idle,
    latencies,
    replica,
    slo,
    unreachable,
)

S = Symptom
FLOOD = {"flood": 0.8, "blue": 0.2}


def slow(name: str, *findings: Finding) -> Replica:
    return replica(name, *findings, latencies=latencies(itl_ms=140.0, ttft_ms=300.0))


def names(verdict: FleetVerdict) -> list[str]:
    return [one.name for one in verdict.bad]


def test_a_replica_with_a_fault_of_its_machine_is_the_bad_one() -> None:
    """By how much against the others' median, and with which finding."""
    verdict = judge([*healthy(3), slow("http://bad:8000", finding(S.THROTTLED))])
    (bad,) = verdict.bad

    assert (verdict.scope, bad.name, bad.symptom) == (
        Scope.BAD_REPLICA, "http://bad:8000", S.THROTTLED,
    )  # fmt: skip
    assert bad.compared is not None
    assert bad.compared.ratio == pytest.approx(3.5, rel=0.01)
    said = " ".join(sentences(verdict))
    assert "one bad replica of 4: http://bad:8000" in said
    assert "throttled; ITL p90 is 162 ms, 3.5 times the median of 3 others, 46 ms" in said


def test_one_of_two_is_bad_where_it_has_a_finding_of_its_own() -> None:
    verdict = judge([replica("a"), slow("b", finding(S.CPU_STARVATION))])

    assert (verdict.scope, names(verdict)) == (Scope.BAD_REPLICA, ["b"])
    assert "3.5 times the other's 46 ms" in sentences(verdict)[1]


def test_a_replica_that_is_far_slower_is_bad_even_without_a_finding() -> None:
    """Against at least two others: of two that differ either may be the odd one."""
    verdict = judge([*healthy(3), slow("bad")])

    assert (verdict.scope, names(verdict)) == (Scope.BAD_REPLICA, ["bad"])
    assert "bad: slow, without a finding" in sentences(verdict)[1]
    assert judge([*healthy(1), slow("bad")]).scope is Scope.HEALTHY


def test_a_replica_that_gets_longer_prompts_is_not_slow() -> None:
    """Only requests of one kind are compared."""
    long = replica("long", latencies=latencies(ttft_ms=900.0, itl_ms=150.0, prompt="2049-8192"))

    assert judge([*healthy(3), long]).scope is Scope.HEALTHY


def test_replicas_that_differ_among_themselves_make_none_of_them_slow() -> None:
    spread = [replica(f"r{k}", latencies=latencies(itl_ms=40.0 * 1.4**k)) for k in range(4)]

    assert judge(spread).scope is Scope.HEALTHY


def test_the_same_on_all_of_what_they_are_sent_is_bad_traffic_with_its_tenant() -> None:
    """No culprit is named: the tenant with most requests on each."""
    sent = {"latencies": latencies(tenants=FLOOD), "slo": slo(60, 20)}
    verdict = judge([replica(f"r{k}", finding(S.QUEUE_OVERLOAD), **sent) for k in range(3)])

    assert verdict.scope is Scope.BAD_TRAFFIC
    assert verdict.shared == (S.QUEUE_OVERLOAD,)
    assert [(one.role, one.name) for one in verdict.in_common] == [
        ("tenant", "flood"), ("class", "chat"),
    ]  # fmt: skip
    assert sentences(verdict)[:2] == (
        "bad traffic: all 3 replicas show queue_overload",
        "in common: tenant flood, at least 80 % of the requests of each",
    )


def test_the_tenant_of_the_culprits_is_named_where_it_is_the_same_on_all() -> None:
    """Requests differ from replica to replica; their tenant does not."""
    sent = [
        replica(f"r{k}", finding(S.PREFILL_INTERFERENCE, 500.0, f"q{k}"), tenants={f"q{k}": "bot"})
        for k in range(3)
    ]

    assert sentences(judge(sent))[1] == "in common: culprit tenant bot"


def test_bad_traffic_without_a_tenant_or_class_that_stands_out_says_so() -> None:
    verdict = judge([replica(f"r{k}", finding(S.QUEUE_OVERLOAD)) for k in range(2)])

    assert verdict.in_common == ()
    assert sentences(verdict) == (
        "bad traffic: all 2 replicas show queue_overload; no tenant or class stands out",
    )


def test_the_same_on_all_of_their_machines_is_not_the_traffic() -> None:
    """One host, one release, one flag."""
    verdict = judge([slow(f"r{k}", finding(S.THROTTLED)) for k in range(3)])

    assert (verdict.scope, verdict.shared) == (Scope.COMMON_CAUSE, (S.THROTTLED,))
    assert "no traffic makes" in sentences(verdict)[0]


def test_a_bad_replica_is_named_though_the_others_are_overloaded_for_it() -> None:
    """They get what it does not do."""
    busy = [replica(f"r{k}", finding(S.QUEUE_OVERLOAD)) for k in range(3)]
    verdict = judge([*busy, slow("bad", finding(S.MEMORY_BANDWIDTH), finding(S.QUEUE_OVERLOAD))])

    assert (verdict.scope, names(verdict)) == (Scope.BAD_REPLICA, ["bad"])
    assert "nearly all show queue_overload as well" in sentences(verdict)[0]


def test_a_replica_that_gets_more_than_its_share_is_uneven_traffic() -> None:
    much = replica("much", finding(S.QUEUE_OVERLOAD), latencies=latencies(requests=200))
    verdict = judge([*healthy(3), much])

    assert (verdict.scope, names(verdict)) == (Scope.UNEVEN_TRAFFIC, ["much"])
    assert (
        "it has 3.3 times the others' median of requests; look at the bal" in sentences(verdict)[1]
    )


def test_a_replica_that_was_sent_something_bad_is_not_bad_itself() -> None:
    """Though it is slow: the finding names whose it is."""
    verdict = judge([*healthy(2), slow("hit", finding(S.PREFILL_INTERFERENCE, 900.0, "q7"))])

    assert (verdict.scope, names(verdict)) == (Scope.UNEVEN_TRAFFIC, ["hit"])
    assert "what it was sent and not about its machine" in sentences(verdict)[1]
    assert sentences(verdict)[1].endswith("culprits q7")


def test_a_replica_that_cannot_do_what_the_others_do_is_bad() -> None:
    """Overloaded by as much as all get, and slower for it: nothing says why, and it is the one."""
    verdict = judge([*healthy(3), slow("weak", finding(S.QUEUE_OVERLOAD))])

    assert (verdict.scope, names(verdict)) == (Scope.BAD_REPLICA, ["weak"])


def test_an_idle_replica_is_no_evidence_for_anything() -> None:
    """Neither that the traffic is good, nor that the others are the bad ones."""
    overloaded = [replica(f"r{k}", finding(S.QUEUE_OVERLOAD)) for k in range(2)]
    verdict = judge([*overloaded, idle("spare")])

    assert (verdict.scope, verdict.judged) == (Scope.BAD_TRAFFIC, 2)


def test_an_unreachable_replica_does_not_stop_the_judgement_of_the_others() -> None:
    verdict = judge([*healthy(2), slow("bad", finding(S.THROTTLED)), unreachable("gone")])

    assert (verdict.scope, names(verdict), verdict.judged) == (Scope.BAD_REPLICA, ["bad"], 3)
    assert sentences(verdict)[0] == "one bad replica of 3: bad (1 without an answer)"


def test_the_only_replica_of_another_version_is_told_to_be_that() -> None:
    newer = replica("newer", finding(S.HOST_STALL), version="0.2.0")
    verdict = judge([*healthy(2), newer])

    assert verdict.bad[0].alone_in == ("version 0.2.0",)
    assert "it alone has version 0.2.0" in sentences(verdict)[1]
    unknown = replica("older", finding(S.HOST_STALL), version="")
    assert judge([*healthy(2), unknown]).bad[0].alone_in == ()


def test_latencies_of_another_model_or_back_end_are_not_compared() -> None:
    """A larger model is slower, and well."""
    larger = replica("larger", latencies=latencies(itl_ms=300.0), model="Llama")

    assert judge([*healthy(3), larger]).scope is Scope.HEALTHY


def test_with_traffic_on_one_replica_only_there_is_not_enough_to_say() -> None:
    verdict = judge([replica("busy", finding(S.THROTTLED)), idle("spare"), unreachable("gone")])

    assert verdict.scope is Scope.NOT_ENOUGH
    assert sentences(verdict)[0] == (
        "not enough to say: 1 of 3 replicas had traffic in the last minute (1 without an answer)"
    )


def test_a_replica_that_has_failed_is_judged_though_it_serves_nothing() -> None:
    hung = replica("hung", finding(S.ENGINE_HUNG), running=0, latencies={}, ready=False)
    verdict = judge([*healthy(2), hung])

    assert (verdict.scope, names(verdict)) == (Scope.BAD_REPLICA, ["hung"])


def test_different_things_on_most_replicas_are_not_enough_to_say() -> None:
    found = [S.KV_THRASH, S.LONG_PROMPTS, S.UNFAIRNESS]
    verdict = judge([replica(f"r{k}", finding(one)) for k, one in enumerate(found)])

    assert verdict.scope is Scope.NOT_ENOUGH
    assert "r0 kv_thrash, r1 long_prompts, r2 unfairness" in verdict.why


def test_a_missed_promise_counts_where_no_cause_is_known() -> None:
    """On all: bad traffic by the form of the miss, where no finding says why."""
    missed = [replica(f"r{k}", finding(S.SLO_MISSED)) for k in range(2)]
    caused = [replica(f"r{k}", finding(S.THROTTLED), finding(S.SLO_MISSED)) for k in range(2)]

    assert judge(missed).shared == (S.SLO_MISSED,)
    assert judge(caused).shared == (S.THROTTLED,)


def test_an_incomplete_record_makes_no_replica_bad() -> None:
    """Serving goes on as before."""
    assert judge([*healthy(2), replica("r", finding(S.TELEMETRY_DEGRADED))]).scope is Scope.HEALTHY


def unsure(
    name: str, why: str = "requests are delayed, and nothing recorded explains it"
) -> Replica:
    return replica(name, diagnosis=Diagnosis((), 0, 0, True, verdict="indeterminate", why=why))


def test_a_fleet_whose_replicas_cannot_judge_themselves_is_not_healthy() -> None:
    """Delays that nothing explains, or a diagnoser that has failed."""
    failed = replica("failed", diagnosis=diagnoser_failed("KeyError"))
    verdict = judge([unsure("delayed"), failed])
    said = sentences(verdict)

    assert verdict.scope is Scope.NOT_ENOUGH
    assert said[0].startswith("not enough to say: 2 of 2 replicas cannot judge themselves")
    assert (
        said[1] == "delayed: indeterminate; requests are delayed, and nothing recorded explains it"
    )
    assert said[2].startswith("failed: indeterminate; the record is not read")


def test_one_replica_that_cannot_judge_itself_is_named_beside_any_verdict() -> None:
    few = judge([*healthy(3), unsure("odd", "why")])
    bad = judge([*healthy(2), unsure("odd", "why"), slow("bad", finding(S.THROTTLED))])

    assert (few.scope, few.judged) == (Scope.NOT_ENOUGH, 4)
    assert (bad.scope, names(bad)) == (Scope.BAD_REPLICA, ["bad"])
    assert "odd: indeterminate; why" in sentences(bad)


@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_is_on_a_side(symptom: Symptom) -> None:
    """A new one must be put on one, or it would be judged by none."""
    assert side_of(finding(symptom)) in Side


@pytest.mark.parametrize(
    ("form", "side"),
    [
        (MissForm.AT_ITS_LIMIT, Side.TRAFFIC),
        (MissForm.MISCONFIGURED, Side.SETTING),
        (MissForm.OUTSIDE, Side.MACHINE),
    ],
)
def test_the_side_of_a_missed_promise_is_that_of_its_form(form: MissForm, side: Side) -> None:
    missed = MissedPromise(
        slo_class="chat", form=form, objective=0.99, requests=40, missed=31,
        late_first_tokens=31, slow_tokens=0, unserved=0, burn=77.5, burn_5min=77.5,
        ttft_target_ms=500.0, ttft_p95_ms=900.0, itl_target_ms=100.0, worst_gap_p95_ms=None,
        parts={},
    )  # fmt: skip
    found = Finding(
        symptom=S.SLO_MISSED, confidence=0.9, claim="chat is late", harm_ms=1.0, evidence=(),
        promises=(missed,),
    )  # fmt: skip

    assert side_of(found) is side
