"""The exact ledger: conservation, non-negativity, symmetry, the dummy axiom, and payers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.facts.adapter_records import AdapterLoaded
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepRecorded,
)
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import EndReason, HostProcess, PauseCause, WaitReason
from telemetry.facts.records import EngineDied, Fact, fact_ns
from telemetry.facts.step_parts import Skip
from telemetry.ledger.builder import LedgerBuilder
from telemetry.requests.account import Entry, Ledger, Part, State
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from tests.support.examples import examples
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)
from tests.support.worlds.ledger_world import run_fold, steps_of, world_facts

WORLDS = st.tuples(st.sampled_from(("chaos", "poisson", "tenants", "bursts")), st.integers(0, 5000))
NAMED = (Part.CO_PREFILL, Part.CO_MASK)


def ledgers(timelines: list[RequestTimeline]) -> dict[str, Ledger]:
    found = {}
    for timeline in timelines:
        assert timeline.account is not None
        found[timeline.accepted.request_id] = timeline.account.ledger
    return found


@examples(15, 50)
@given(WORLDS)
def test_in_any_run_ledgers_are_exact_and_name_only_requests_that_shared_steps(
    world: tuple[str, int],
) -> None:
    """Each ledger by itself, its payers, and the sums over all ledgers."""
    facts = world_facts(*world)
    timelines, ledger_builder = run_fold(facts)
    found = ledgers(timelines)
    steps = steps_of(facts)
    for timeline in timelines:
        ledger = found[timeline.accepted.request_id]
        parts_sum_to_its_time_and_none_is_negative(timeline, ledger)
        requests_without_a_common_step_take_none_of_its_time(timeline, ledger, steps)
    payments_between_requests_are_those_of_the_harm_ledger(found, ledger_builder)


def parts_sum_to_its_time_and_none_is_negative(timeline: RequestTimeline, ledger: Ledger) -> None:
    assert ledger.e2e_ns == timeline.ended.at_ns - timeline.accepted.at_ns
    assert ledger.residue_ns == 0
    assert all(entry.ns > 0 for entry in ledger.entries), ledger


def requests_without_a_common_step_take_none_of_its_time(
    timeline: RequestTimeline, ledger: Ledger, steps: list[StepRecorded]
) -> None:
    """The dummy axiom, from the facts themselves."""
    present = {
        f"r{row.seq_id}"
        for one in steps
        if one.committed_ns > timeline.accepted.at_ns and one.begin_ns < timeline.ended.at_ns
        for row in one.rows
    } - {timeline.accepted.request_id}
    assert set(ledger.by_payer()) <= present


def payments_between_requests_are_those_of_the_harm_ledger(
    found: dict[str, Ledger], ledger_builder: LedgerBuilder
) -> None:
    parts: Counter[Part] = Counter()
    for ledger in found.values():
        parts += ledger.by_part()
    report = ledger_builder.harm.report(requests=10_000)
    paid = sum(parts[part] for part in NAMED)
    assert paid == sum(report.by_request_ns.values())
    assert paid == sum(report.by_tenant_ns.values()) == sum(report.by_class_ns.values())
    assert report.total_ns == paid + parts[Part.CO_DECODE]
    assert report.by_part_ns.get("co_decode", 0) == parts[Part.CO_DECODE]


@examples(10, 25)
@given(WORLDS, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_a_ledger_does_not_depend_on_how_facts_are_batched(
    world: tuple[str, int], batches: list[int]
) -> None:
    facts = world_facts(*world)
    whole, harm = run_fold(facts)
    cut, harm_cut = run_fold(facts, batches)
    assert {t.accepted.request_id: t.account for t in whole} == {
        t.accepted.request_id: t.account for t in cut
    }
    assert harm.harm.report() == harm_cut.harm.report()


def test_almost_no_time_of_a_thousand_chaotic_requests_is_unattributed() -> None:
    shares = []
    seen: set[Part] = set()
    states: set[State] = set()
    for seed in range(80):
        for ledger in ledgers(run_fold(world_facts("chaos", seed, 900_000))[0]).values():
            shares.append(ledger.unattributed_ns / max(1, ledger.e2e_ns))
            seen |= set(ledger.by_part())
            states |= set(ledger.by_state())
    shares.sort()
    assert len(shares) > 700
    assert shares[len(shares) // 2] <= 0.01
    assert shares[int(0.99 * len(shares))] <= 0.02
    assert states == set(State) - {State.WIRE}
    missing = set(Part) - seen
    virtual = {Part.HOST, Part.SAMPLE, Part.MASK, Part.CO_MASK, Part.HOST_STALL}
    virtual |= {Part.NOT_OBSERVED, Part.REMOTE_KV}  # of attached engines
    virtual |= {Part.WIRE, Part.WIRE_OUT, Part.WIRE_BACK}  # of engine nodes
    virtual |= {part for part in Part if part.value.startswith("kv.")}  # of other engines' prompts
    assert missing <= virtual, missing  # a simulated device takes no time for those


def lifecycle(
    seq_id: int, facts: list[Fact], accepted_at: int = 0, ended_at: int = 1000
) -> list[Fact]:
    """Gateway facts of request r{seq_id} around the engine's."""
    name = f"r{seq_id}"
    return [
        accepted(name, accepted_at),
        parsed(name, accepted_at + 1),
        tokenized(name, accepted_at + 2),
        submitted(name, accepted_at + 3, seq_id),
        queued(seq_id, accepted_at + 4),
        *facts,
        sequence_ended(seq_id, ended_at - 20),
        request_ended(name, ended_at),
    ]


def entries(ledger: Ledger, part: Part) -> list[Entry]:
    return [entry for entry in ledger.entries if entry.part is part]


def steady(first: int, count: int, rows: list[int], at: int, length: int = 10) -> list[Fact]:
    return [
        step(first + i, at + i * length, at + (i + 1) * length, [decode(r, 5 + i) for r in rows])
        for i in range(count)
    ]


def interference() -> list[Fact]:
    """Two decoders at 10 ms a step; request 3's prompt of 400 tokens makes one of 200 ms."""
    facts: list[Fact] = []
    facts += [step(0, 10, 20, [prefill(1), prefill(2)])]
    facts += steady(1, 40, [1, 2], 20)
    facts += [step(41, 420, 620, [decode(1), decode(2), prefill(3, tokens=400)])]
    facts += steady(42, 10, [1, 2, 3], 620)
    ends = [*lifecycle(1, [], 0, 760), *lifecycle(2, [], 0, 760), *lifecycle(3, [], 410, 760)]
    return sorted([*facts, *ends], key=fact_ns)


def test_a_late_token_names_the_request_whose_prompt_made_it_late() -> None:
    timelines, ledger_builder = run_fold(interference(), itl_target_ns=50 * MS)
    for timeline in timelines:
        assert timeline.account is not None
        if timeline.accepted.request_id == "r3":
            assert timeline.account.stalls == ()
            continue
        (stall,) = timeline.account.stalls
        assert (stall.end_ns - stall.begin_ns, stall.part) == (200 * MS, Part.CO_PREFILL)
        assert (stall.culprit_request_id, stall.culprit_step_id) == ("r3", 41)
        assert stall.part_ns > 150 * MS
    assert ledger_builder.harm.is_culprit("r3")
    assert not ledger_builder.harm.is_culprit("r1")
    assert next(iter(ledger_builder.harm.report().by_request_ns)) == "r3"


def test_of_two_prompts_in_a_step_the_one_that_took_more_is_the_culprit() -> None:
    facts: list[Fact] = [step(0, 10, 20, [prefill(1)]), *steady(1, 40, [1], 20)]
    both = [decode(1), prefill(2, tokens=40), prefill(3, tokens=400)]
    facts += [step(41, 420, 620, both), *steady(42, 10, [1, 2, 3], 620)]
    ends = [*lifecycle(1, [], 0, 760), *lifecycle(2, [], 410, 760), *lifecycle(3, [], 410, 760)]
    timelines, ledger_builder = run_fold(
        sorted([*facts, *ends], key=fact_ns), itl_target_ns=50 * MS
    )
    accounts = {t.accepted.request_id: t.account for t in timelines}
    assert accounts["r1"] is not None
    (stall,) = accounts["r1"].stalls
    assert stall.culprit_request_id == "r3"
    assert ledger_builder.harm.is_culprit("r3")


def test_two_equal_requests_pay_each_other_the_same() -> None:
    timelines, _ = run_fold(interference())
    found = ledgers(timelines)
    first, second = found["r1"].by_part(), found["r2"].by_part()
    assert set(first) == set(second)
    steps = 52  # an odd ns of a step's decodes goes to one of two rows
    assert all(abs(first[part] - second[part]) <= steps for part in first)
    assert first[Part.CO_DECODE] > 50 * MS


def test_the_decodes_of_others_are_charged_together_without_a_payer() -> None:
    """Naming a payer for each row would cost time in proportion to the batch."""
    timelines, ledger_builder = run_fold(interference(), itl_target_ns=50 * MS)
    decodes = [e for ledger in ledgers(timelines).values() for e in entries(ledger, Part.CO_DECODE)]
    assert sum(e.ns for e in decodes) > 100 * MS
    assert {e.payer for e in decodes} == {None}
    assert set(ledger_builder.harm.report().by_request_ns) <= {"r1", "r2", "r3"}


def test_a_token_that_only_the_size_of_the_batch_made_late_has_no_culprit() -> None:
    rows = list(range(2, 60))
    facts: list[Fact] = [step(0, 10, 20, [prefill(1), *(prefill(r) for r in rows)])]
    facts += steady(1, 40, [1, 2], 20)
    facts += steady(41, 5, [1, *rows], 420, length=80)
    lifecycles = [lifecycle(seq_id, [], 0, 900) for seq_id in (1, *rows)]
    facts = sorted([*facts, *(fact for one in lifecycles for fact in one)], key=fact_ns)
    timelines, ledger_builder = run_fold(facts, itl_target_ns=50 * MS)
    (timeline,) = [t for t in timelines if t.accepted.request_id == "r1"]
    assert timeline.account is not None
    assert [stall.part for stall in timeline.account.stalls] == [Part.CO_DECODE] * 5
    assert {stall.culprit_seq_id for stall in timeline.account.stalls} == {None}
    assert not any(ledger_builder.harm.is_culprit(f"r{seq_id}") for seq_id in rows)


def test_waiting_time_is_charged_by_the_reason_of_the_wait_to_the_steps_in_it() -> None:
    skips = (Skip(2, WaitReason.KV, None),)
    held = [
        step(1 + i, 20 + 10 * i, 30 + 10 * i, [decode(1, 5 + i)], skips=skips) for i in range(10)
    ]
    facts = [step(0, 10, 20, [prefill(1)]), *held, step(11, 120, 130, [decode(1), prefill(2)])]
    facts = sorted([*facts, *lifecycle(1, [], 0, 200), *lifecycle(2, [], 15, 200)], key=fact_ns)
    ledger = ledgers(run_fold(facts)[0])["r2"]
    waited = [e for e in ledger.entries if (e.state, e.reason) == (State.WAIT, "kv")]
    assert sum(e.ns for e in waited) == 100 * MS
    assert {e.payer for e in waited if e.part is Part.CO_DECODE} == {None}
    next_step = [e for e in ledger.entries if e.reason == "next_step"]
    assert sum(e.ns for e in next_step) == 2 * MS  # submitted at 18, step 0 ends at 20
    assert ledger.residue_ns == 0


def test_a_step_faster_than_predicted_shrinks_its_shares_and_a_slower_one_has_a_residual() -> None:
    facts = interference()
    slow = [replace_step(f, 20, 35) if fact_id(f) == 30 else f for f in facts]
    ledger = ledgers(run_fold(slow)[0])["r1"]
    assert sum(e.ns for e in entries(ledger, Part.SLOW_STEP)) > 10 * MS
    assert ledger.residue_ns == 0


def fact_id(fact: Fact) -> int:
    return getattr(fact, "step_id", -1) if type(fact).__name__ == "StepRecorded" else -1


def replace_step(fact: Fact, by: int, longer: int) -> Fact:
    """The step's forward takes `longer` ms; the steps behind are clamped by the tape."""
    end_ns = fact.begin_ns + longer * MS  # type: ignore[union-attr]
    stamps = dict.fromkeys(("sample_ns", "collected_ns", "committed_ns"), end_ns)
    return msgspec.structs.replace(fact, **stamps)  # type: ignore[type-var]


def test_a_known_pause_gets_the_gap_that_it_caused() -> None:
    facts = [step(0, 10, 20, [prefill(1)]), step(1, 320, 330, [decode(1)])]
    begin_ns, end_ns = 21 * MS, 319 * MS
    pause = HostPaused(end_ns, begin_ns, end_ns, HostProcess.ENGINE, PauseCause.GC)
    facts = sorted([*facts, pause, *lifecycle(1, [], 0, 400)], key=fact_ns)
    timelines: list[RequestTimeline] = []
    ledger_builder = LedgerBuilder(lambda slo_class: 50 * MS)
    PhaseFold([timelines.append], ledger_builder=ledger_builder).on_facts(facts)
    (timeline,) = timelines
    assert timeline.account is not None
    ledger = timeline.account.ledger
    assert [(e.payer, e.ns) for e in entries(ledger, Part.HOST_STALL)] == [("gc", 298 * MS)]
    assert ledger.unattributed_ns == (6 + 1) * MS  # idle from 3 to 10; 300 - 298 - a turn-around
    assert ledger.residue_ns == 0
    (stall,) = timeline.account.stalls
    assert (stall.part, stall.cause) == (Part.HOST_STALL, "gc")


def test_a_gap_in_which_adapters_were_placed_belongs_to_them() -> None:
    """Also for a request that uses none. Both are told together, at the end of the second."""
    facts: list[Fact] = [step(0, 3, 20, [prefill(1)]), step(1, 50, 60, [decode(1)])]
    facts += [
        AdapterLoaded(50 * MS, 1, number, bytes=1, place_ns=place_ms * MS)
        for number, place_ms in ((1, 10), (2, 15))
    ]
    ends = lifecycle(1, [], 0, 80)
    ledger = ledgers(run_fold(sorted([*facts, *ends], key=fact_ns))[0])["r1"]
    assert sum(e.ns for e in entries(ledger, Part.ADAPTER)) == 25 * MS
    assert ledger.unattributed_ns == (5 - 1) * MS  # what is left of the gap, less a turn-around
    assert ledger.residue_ns == 0


def test_a_client_that_did_not_read_is_charged_where_no_other_step_ran() -> None:
    facts: list[Fact] = [step(0, 3, 20, [prefill(1)]), step(1, 320, 330, [decode(1)])]
    facts += [SequencePaused(1, 20 * MS, 1), SequenceResumed(1, 320 * MS, 1)]
    ledger = ledgers(run_fold(sorted([*facts, *lifecycle(1, [], 0, 400)], key=fact_ns))[0])["r1"]
    assert sum(e.ns for e in entries(ledger, Part.CLIENT)) == 300 * MS


def test_a_client_that_does_not_read_is_waited_for_after_the_grammar() -> None:
    """The grammar is waited for to its end, also if the client reads again before that."""
    paused: list[Fact] = [SequencePaused(1, 10 * MS, 0), SequenceResumed(1, 60 * MS, 0)]
    for compiled_ms, client_ms in ((40, 20), (90, 0)):
        compiled = GrammarCompiled(
            1, compiled_ms * MS, 0, compile_ns=MS, cached=False, refused=False
        )
        begin_ms = max(compiled_ms, 60)
        one = step(0, begin_ms, 100, [prefill(1)])
        ends = lifecycle(1, [], 0, 130)
        ends = [
            msgspec.structs.replace(fact, constrained=True)
            if isinstance(fact, SequenceQueued)
            else fact
            for fact in ends
        ]
        facts = sorted([*ends, *paused, compiled, one], key=fact_ns)
        ledger = ledgers(run_fold(facts)[0])["r1"]
        assert sum(e.ns for e in entries(ledger, Part.GRAMMAR)) == (compiled_ms - 4) * MS
        assert sum(e.ns for e in entries(ledger, Part.CLIENT)) == client_ms * MS


def test_the_recompute_of_a_preempted_request_is_a_part_of_its_own() -> None:
    first = prefill(1, tokens=8)
    again = replace_row(prefill(1, tokens=9), recompute_tokens=9)
    facts = [
        step(0, 10, 20, [first]),
        step(1, 20, 30, [decode(2)], preempted=(1,), skips=(Skip(1, WaitReason.KV, None),)),
        step(2, 30, 50, [again]),
    ]
    ends = [*lifecycle(1, [], 0, 100), *lifecycle(2, [], 0, 100)]
    ledger = ledgers(run_fold(sorted([*facts, *ends], key=fact_ns))[0])["r1"]
    assert ledger.by_part()[Part.OWN_RECOMPUTE] == 20 * MS
    assert ledger.by_state()[State.PREEMPTED] == 10 * MS
    assert ledger.residue_ns == 0


def replace_row(row: object, **fields: object) -> object:
    return msgspec.structs.replace(row, **fields)  # type: ignore[type-var]


def test_a_request_that_dies_with_the_engine_has_a_lost_step() -> None:
    facts = [step(0, 10, 20, [prefill(1)]), EngineDied(90 * MS, -9, "ended by signal 9", 0)]
    ended = request_ended("r1", 95, EndReason.ENGINE_DIED)
    gateway = [f for f in lifecycle(1, [], 0, 100) if fact_ns(f) < 70 * MS]
    ledger = ledgers(run_fold(sorted([*gateway, *facts, ended], key=fact_ns))[0])["r1"]
    assert ledger.by_part()[Part.LOST_STEP] == 70 * MS
    assert ledger.unattributed_ns == 6 * MS  # idle from 3 to 10, less a turn-around


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_in_a_step_changes_no_ledger(seed: int) -> None:
    facts = world_facts("poisson", seed)
    random = Random(seed)

    def shuffled(fact: Fact) -> Fact:
        if type(fact).__name__ != "StepRecorded":
            return fact
        rows = list(fact.rows)  # type: ignore[union-attr]
        random.shuffle(rows)
        return msgspec.structs.replace(fact, rows=tuple(rows))  # type: ignore[type-var]

    before = ledgers(run_fold(facts)[0])
    after = ledgers(run_fold([shuffled(fact) for fact in facts])[0])
    for request_id, ledger in before.items():
        for part, spent_ns in ledger.by_part().items():
            assert abs(after[request_id].by_part()[part] - spent_ns) <= 1000, (request_id, part)


def test_timelines_without_a_ledger_builder_have_no_ledger() -> None:
    timelines: list[RequestTimeline] = []
    PhaseFold([timelines.append]).on_facts(interference())
    assert [t.account for t in timelines] == [None] * 3
    assert replace(timelines[0], account=None) == timelines[0]
