"""Promises of simulated servers: what is missed, since when, where the time goes, and in which
form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from diagnosis.promises.book_keeper import BookKeeper
from diagnosis.promises.promises import Promises
from diagnosis.symptoms import Finding, MissForm, Symptom
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from diagnosis.verdicts.offline import diagnose_journal
from lab.twins.faults.promise_faults import PLAIN_POLICY
from lab.twins.registry import TWINS, build_clean
from lab.twins.traffic import policy_of_world
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import SequenceEnded, StepRecorded
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost, RequestEnded, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from telemetry.ledger.builder import LedgerBuilder
from telemetry.numbers.quantiles import quantile
from telemetry.requests.account import Part, State
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.stats.slo import judge
from telemetry.stats.slo_report import Verdict
from tests.support.worlds.twins.cases import SECOND, SEED, judged_once, top_of, twin, verdicts

MISSED = Symptom.SLO_MISSED
FORMS = TWINS[MISSED.value]


def promise_of(said: Diagnosis) -> Finding | None:
    return next((one for one in said.findings if one.symptom is MISSED), None)


def found_in(said: list[tuple[int, Diagnosis]]) -> list[tuple[int, Finding]]:
    """Every finding of a missed promise, and when it was made."""
    pairs = [(at_ns, promise_of(one)) for at_ns, one in said]
    return [(at_ns, finding) for at_ns, finding in pairs if finding is not None]


def timelines_of(facts: list[Fact], policy: SloPolicy) -> list[RequestTimeline]:
    found: list[RequestTimeline] = []
    fold = PhaseFold([found.append], (), LedgerBuilder(lambda name: policy.of(name).itl_ns))
    fold.on_facts(facts)
    fold.close()
    return found


# --- the four forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_named_since_the_first_requests(form: str) -> None:
    """Twenty seeds of each are in `benchmarks.diagnosis.promises`."""
    one = twin(MISSED.value, form)
    found = found_in(judged_once(MISSED.value, form).verdicts)
    forms = Counter(p.form for _, finding in found for p in finding.promises)
    begin_ns = fact_ns(one.facts[0])

    assert set(forms) == {MissForm(form)}
    assert found[0][0] - begin_ns < 20 * SECOND
    assert found[0][1].onset_ns is not None
    assert found[0][1].onset_ns - begin_ns < 15 * SECOND


@pytest.mark.parametrize("form", FORMS)
def test_the_same_server_keeps_its_promise_without_what_is_wrong(form: str) -> None:
    one = replace(twin(MISSED.value, form), facts=build_clean(MISSED.value, SEED, form))

    assert {top_of(said) for _, said in verdicts(replace(one, policy=PLAIN_POLICY))} == {"healthy"}


def test_a_bad_setting_is_named_with_the_wait_that_it_makes() -> None:
    _, finding = found_in(judged_once(MISSED.value, "misconfigured").verdicts)[-1]
    (promise,) = finding.promises

    assert promise.setting in ("max_num_seqs", "max_batched_tokens", "kv_memory")
    assert promise.setting in finding.claim
    assert promise.utilisation is not None
    assert promise.utilisation < 0.9
    assert promise.missed > 0.5 * promise.requests
    assert promise.burn > 50
    assert promise.ttft_p95_ms is not None
    assert promise.ttft_p95_ms > promise.ttft_target_ms


def test_impossible_requests_spend_their_time_on_their_own_prompts() -> None:
    _, finding = found_in(judged_once(MISSED.value, "impossible").verdicts)[-1]
    (promise,) = finding.promises

    assert next(iter(promise.parts)) == Part.OWN_PREFILL
    assert not promise.setting


def test_of_two_classes_only_the_one_that_misses_is_named() -> None:
    found = found_in(judged_once(MISSED.value, "one_class").verdicts)
    said = [finding.promises for _, finding in found]

    assert {promise.slo_class for promises in said for promise in promises} == {"voice"}


# --- what counts, and when --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mechanism", "policy"),
    [
        *((MISSED.value, form, None) for form in FORMS),
        ("prefill_interference", "unchunked", policy_of_world(1_000, 60)),
        ("step_failure", TWINS["step_failure"][0], policy_of_world(300, 60)),
        ("slow_client", "readers", policy_of_world(300, 200)),
    ],
)
def test_what_is_counted_is_what_the_slo_report_counts(
    name: str, mechanism: str, policy: SloPolicy | None
) -> None:
    """Each request once, judged as at its end, no matter when it was known. Only a client who left
    after its request had missed does not take that back."""
    one = twin(name, mechanism)
    one = one if policy is None else replace(one, policy=policy)
    keeper = BookKeeper(one.policy)
    for fact in one.facts:
        keeper.on_fact(fact)
    keeper.tick(fact_ns(one.facts[-1]))
    good, missed = Counter[str](), Counter[str]()
    for slo_class, book in keeper.books.items():
        found = book.attainment.long()
        good[slo_class] += found.requests - found.missed
        missed[slo_class] += found.missed
    at_end: dict[Verdict, Counter[str]] = {verdict: Counter() for verdict in Verdict}
    for timeline in timelines_of(one.facts, one.policy):
        target = one.policy.of(timeline.accepted.slo_class)
        at_end[judge(timeline, target)][target.name] += 1
    missed_at_end: Counter[str] = sum(
        (names for verdict, names in at_end.items() if verdict.is_miss), Counter()
    )

    assert +good == at_end[Verdict.GOOD]
    assert missed_at_end <= missed <= missed_at_end + at_end[Verdict.CLIENT_CANCELLED]
    assert keeper.live == 0


def test_requests_that_wait_beyond_their_target_have_missed_before_they_end() -> None:
    """None of them ends or gets a token: the engine computes nothing."""
    one = twin(MISSED.value, "misconfigured")
    never = (RequestEnded, SequenceEnded, StepRecorded)
    facts = [fact for fact in one.facts if not isinstance(fact, never)]
    found = found_in(verdicts(replace(one, facts=facts)))

    assert found
    assert found[0][0] - fact_ns(facts[0]) < 20 * SECOND
    assert found[0][1].victims


def test_where_the_time_went_agrees_with_the_ledger() -> None:
    """The exact parts are known when requests have ended; these are as good to a tenth."""
    one = twin(MISSED.value, "misconfigured")
    keeper = BookKeeper(one.policy)
    charged: Counter[str] = Counter()
    for fact in one.facts:
        keeper.on_fact(fact)
    for book in keeper.books.values():
        charged += book.parts()
    exact: Counter[str] = Counter()
    for timeline in timelines_of(one.facts, one.policy):
        target = one.policy.of(timeline.accepted.slo_class)
        if timeline.ttft_ns is not None and timeline.ttft_ns > target.ttft_ns:
            assert timeline.account is not None
            for entry in timeline.account.ledger.entries:
                if entry.state is State.WAIT:
                    exact["wait"] += entry.ns
                elif entry.part is Part.OWN_PREFILL:
                    exact["own_prefill"] += entry.ns
    waited_ns = sum(ns for name, ns in charged.items() if name.startswith("wait: "))

    assert waited_ns == pytest.approx(exact["wait"], rel=0.1)
    assert charged["own_prefill"] == pytest.approx(exact["own_prefill"], rel=0.1)


def test_the_longest_gaps_are_those_of_the_finished_requests() -> None:
    one = replace(twin("prefill_interference", "unchunked"), policy=policy_of_world(1_000, 60))
    keeper = BookKeeper(one.policy)
    for fact in one.facts:
        keeper.on_fact(fact)
    gaps_ns: dict[str, list[int]] = {}
    for timeline in timelines_of(one.facts, one.policy):
        gaps = [b - a for sequence in timeline.sequences for a, b in pairwise(sequence.token_ns)]
        if gaps:
            name = one.policy.of(timeline.accepted.slo_class).name
            gaps_ns.setdefault(name, []).append(max(gaps))

    assert gaps_ns
    for name, kept in gaps_ns.items():
        assert keeper.books[name].worst_gap_p95_ns() == quantile(kept, 0.95)


def test_lost_facts_are_no_missed_promise() -> None:
    """Of requests that were live when facts were lost nothing is said."""
    one = twin(MISSED.value, "misconfigured")
    middle_ns = fact_ns(one.facts[0]) + 3 * SECOND
    facts: list[Fact] = [fact for fact in one.facts if fact_ns(fact) < middle_ns]
    lost = FactsLost(at_ns=middle_ns, source=FactSource.GATEWAY, count=3)
    promises = Promises(one.policy)
    for fact in [*facts, lost]:
        promises.on_fact(fact)
    assert promises.live == 0
    for tick in range(1, 60):
        promises.tick(middle_ns + tick * SECOND // 2)

    assert not promises.is_missed


# --- beside causes, and offline --------------------------------------------------------------


def test_a_cause_stands_before_the_promise_that_it_breaks() -> None:
    """The promise is listed, and last."""
    one = twin("kv_exhaustion", TWINS["kv_exhaustion"][0])
    tight = replace(one, policy=PLAIN_POLICY)
    both = [
        [finding.symptom for finding in said.findings]
        for _, said in verdicts(tight)
        if len(said.findings) > 1 and promise_of(said) is not None
    ]

    assert both
    assert {found[-1] for found in both} == {MISSED}
    assert Symptom.KV_EXHAUSTION in {found[0] for found in both}


def test_a_journal_gives_the_verdict_of_its_server_and_of_other_targets(tmp_path: Path) -> None:
    """Its header has the policy; another one may be given, and without one there is no promise."""
    one = twin(MISSED.value, "impossible")
    live, silent = Diagnoser(policy=one.policy), Diagnoser()
    live.on_facts(one.facts)
    silent.on_facts(one.facts)
    path = tmp_path / "dump.journal"
    write_journal(path, one.facts, MonotonicClock(), "manual", one.policy)
    loose = SloPolicy(
        {
            "chat": msgspec.structs.replace(
                one.policy.classes["chat"], ttft_ns=60 * SECOND, itl_ns=60 * SECOND
            )
        },
        "chat",
    )

    assert diagnose_journal(open_journal(path)) == live.diagnosis()
    assert promise_of(live.diagnosis()) is not None
    assert promise_of(diagnose_journal(open_journal(path), policy=loose)) is None
    assert promise_of(silent.diagnosis()) is None


def test_an_older_journal_is_judged_by_the_default_classes(tmp_path: Path) -> None:
    one = twin(MISSED.value, "impossible")
    path = tmp_path / "dump.journal"
    write_journal(path, one.facts, MonotonicClock(), "manual")
    said = diagnose_journal(open_journal(path))

    assert said == diagnose_journal(open_journal(path), policy=DEFAULT_POLICY)
