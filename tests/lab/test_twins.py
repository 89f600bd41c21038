"""Virtual twins: facts are consistent like a real server's, and each fault delays requests."""

from __future__ import annotations

from collections import Counter

import pytest

from diagnosis.symptoms import Symptom
from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.twins.compounds import COMPOUNDS, build_compound
from lab.twins.registry import TWINS, build_clean, build_twin
from lab.twins.simulated_run import REFERENCE, START_NS, Span
from lab.twins.twin import Twin
from telemetry.facts.engine_records import (
    SequenceEnded,
    SequenceQueued,
)
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.records import (
    EngineDied,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.ledger.builder import LedgerBuilder
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from tests.support.worlds.twins.cases import SEED, twin
from tests.support.worlds.twins.measures import (
    Group,
    Measure,
    e2e,
    itl,
    itl_tail,
    slowest,
    steps,
    ttft,
)
from tests.support.worlds.twins.traces import TRACES, fault, of, pauses

pytestmark = pytest.mark.long

SECOND = 1_000_000_000
SETTLED = Span(START_NS + 4 * SECOND, START_NS + 30 * SECOND)
EVERYBODY: Group = frozenset()
ALL = [(name, mechanism) for name, known in TWINS.items() for mechanism in known]
WHOLE_RECORDS = [pair for pair in ALL if pair[0] != "telemetry_degraded"]
HURTS = 1.3

# what each class makes worse, and whether for all requests or for the victims that the twin names
HARM: dict[str, tuple[Measure, bool]] = {
    "queue_overload": (ttft, False),
    "prefill_interference": (itl_tail, False),
    "long_prompts": (ttft, True),
    "prefix_cache_cold": (ttft, False),
    "kv_exhaustion": (ttft, False),
    "kv_thrash": (e2e, False),
    "oversized_batch": (itl, False),
    "memory_bandwidth": (itl, False),
    "throttled": (e2e, False),
    "host_stall": (itl_tail, False),
    "cpu_starvation": (itl, False),
    "ingest_backlog": (ttft, False),
    "grammar_cost": (slowest, False),
    "adapter_churn": (ttft, False),
    "slow_client": (e2e, True),
    "cancellation_leak": (itl, False),
    "unfairness": (ttft, True),
    "heavy_sampling": (itl, False),
    "budget_too_small": (ttft, False),
}


def ratio(one: Twin, measure: Measure, who: Group = EVERYBODY) -> float:
    """The bad time over the good one: before, or in another run."""
    if one.before is not None:
        return measure(one.facts, SETTLED, who) / measure(one.before, SETTLED, EVERYBODY)
    good = measure(one.facts, REFERENCE, EVERYBODY)
    return measure(one.facts, fault(one), who) / good


# --- they look like the real ones ---


@pytest.mark.parametrize(("name", "mechanism"), ALL)
def test_facts_come_in_the_order_of_time(name: str, mechanism: str) -> None:
    stamps = [fact_ns(fact) for fact in twin(name, mechanism).facts]
    assert stamps == sorted(stamps)
    assert stamps[0] >= START_NS
    for step in steps(twin(name, mechanism).facts):
        known = (step.begin_ns, step.planned_ns, step.forward_ns, step.sample_ns, step.committed_ns)
        assert list(known) == sorted(known)


@pytest.mark.parametrize(("name", "mechanism"), WHOLE_RECORDS)
def test_every_request_ends_once(name: str, mechanism: str) -> None:
    facts = twin(name, mechanism).facts
    accepted = Counter(fact.request_id for fact in of(facts, RequestAccepted))
    ended = Counter(fact.request_id for fact in of(facts, RequestEnded))
    assert accepted == ended
    assert set(ended.values()) == {1}
    queued = Counter(fact.seq_id for fact in of(facts, SequenceQueued))
    gone = Counter(fact.seq_id for fact in of(facts, SequenceEnded))
    assert set(gone.values()) <= {1}
    if not of(facts, EngineDied):
        assert queued <= gone


def test_every_symptom_has_a_twin() -> None:
    assert {symptom.value for symptom in Symptom} <= set(TWINS)
    assert set(HARM) <= set(TWINS)


@pytest.mark.parametrize("name", sorted({symptom.value for symptom in Symptom} - set(HARM)))
def test_a_fault_makes_another_run(name: str) -> None:
    """What takes minutes on a server takes seconds in virtual time, in every test run. Of the other
    faults it is shown how much they delay."""
    one = twin(name, TWINS[name][0])

    assert one.onset_ns is not None
    assert one.facts != build_clean(name, SEED)


@pytest.mark.parametrize("name", sorted(set(TWINS) - {symptom.value for symptom in Symptom}))
def test_the_other_twins_are_healthy(name: str) -> None:
    one = twin(name, TWINS[name][0])

    assert one.onset_ns is None
    assert one.facts == build_clean(name, SEED)


@pytest.mark.parametrize("name", ["prefix_cache_cold", "kv_thrash", "slow_client", "load_failure"])
def test_every_decision_is_the_production_schedulers(name: str) -> None:
    """A replay of the record comes to the same plans, step by step."""
    for run in read_runs(twin(name, TWINS[name][-1]).facts):
        assert replay_exactly(run).holds


@pytest.mark.parametrize("name", ["slow_client", "out_of_memory"])
def test_requests_times_add_up(name: str) -> None:
    """The ledger charges every nanosecond of every request of a twin."""
    timelines: list[RequestTimeline] = []
    fold = PhaseFold([timelines.append], ledger_builder=LedgerBuilder(lambda slo_class: 30_000_000))
    fold.on_facts(twin(name, TWINS[name][0]).facts)
    fold.close()
    assert len(timelines) > 50
    for timeline in timelines:
        assert timeline.account is not None
        assert sum(entry.ns for entry in timeline.account.ledger.entries) == timeline.e2e_ns


@pytest.mark.parametrize("name", ["prefix_cache_cold", "oversized_batch"])
def test_a_twin_is_a_function_of_its_seed(name: str) -> None:
    assert build_twin(name, 5) == twin(name, TWINS[name][0])
    assert build_twin(name, 6).facts != twin(name, TWINS[name][0]).facts


def test_gateway_stamps_follow_each_other() -> None:
    facts = twin("healthy_busy", "clusters").facts
    kinds = (RequestAccepted, RequestParsed, RequestTokenized, SequenceSubmitted, RequestEnded)
    by_request: dict[str, list[Fact]] = {}
    for fact in facts:
        if isinstance(fact, kinds):
            by_request.setdefault(fact.request_id, []).append(fact)
    for own in by_request.values():
        places = [kinds.index(type(fact)) for fact in own]
        assert places == sorted(places)
        ended = own[-1]
        assert isinstance(ended, RequestEnded)
        assert ended.first_sent_ns is None or ended.first_sent_ns <= ended.at_ns


# --- what is wrong hurts, and nothing else does ---


@pytest.mark.parametrize(("name", "mechanism"), [pair for pair in ALL if pair[0] in HARM])
def test_the_fault_delays_requests(name: str, mechanism: str) -> None:
    one = twin(name, mechanism)
    assert one.onset_ns is not None
    measure, of_victims = HARM[name]
    assert ratio(one, measure, one.victims if of_victims else EVERYBODY) > HURTS


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [pair for pair in ALL if pair[0] in ("healthy_light", "healthy_busy", "invalid_output")],
)
def test_twins_without_delays_keep_their_latencies(name: str, mechanism: str) -> None:
    """Healthy ones, and invalid outputs, which are not late."""
    one = twin(name, mechanism)
    assert 0.6 < ratio(one, e2e) < 1.5
    assert 0.8 < ratio(one, itl) < 1.25


def test_a_busy_server_is_busy() -> None:
    """Somebody waits now and then, and the cache is nearly full at times; nobody is preempted
    for it."""
    found = steps(twin("healthy_busy", "clusters").facts)
    assert sum(step.waiting > 0 for step in found) > 0.03 * len(found)
    assert max(step.blocks_used / step.blocks_total for step in found) > 0.85
    assert sum(len(step.preempted) for step in found) < 5


# --- each mechanism leaves the traces that it would leave ---


@pytest.mark.parametrize(("name", "mechanism"), sorted(TRACES))
def test_the_mechanism_leaves_its_traces(name: str, mechanism: str) -> None:
    assert TRACES[name, mechanism](twin(name, mechanism))


def test_culprits_and_victims_are_not_the_same() -> None:
    one = twin("prefill_interference", "unchunked")
    assert one.culprits
    assert one.victims
    assert not one.culprits & one.victims
    greedy = twin("unfairness", "flood")
    assert len(greedy.culprits) == 1
    assert not greedy.culprits & greedy.victims


# --- two at once ---


def test_pairs_are_of_known_names() -> None:
    assert len(set(COMPOUNDS)) == len(COMPOUNDS) >= 10
    assert {name for pair in COMPOUNDS for name in pair} <= set(TWINS)


def test_two_faults_leave_the_traces_of_both() -> None:
    one = build_compound(("queue_overload", "host_stall"), 3)
    assert one.together_ns is not None
    assert one.onset_ns is not None
    assert 0 <= one.together_ns[0] - one.onset_ns <= 5 * SECOND
    assert one.together_ns[1] == one.end_ns
    assert pauses(one, HostProcess.ENGINE, PauseCause.GC, 190) >= 8
    arrivals = of(one.facts, RequestAccepted)
    inside = sum(fault(one).has(fact.at_ns) for fact in arrivals) / (fault(one).length_ns / 1e9)
    before = sum(REFERENCE.has(fact.at_ns) for fact in arrivals) / (REFERENCE.length_ns / 1e9)
    assert inside > 1.6 * before
