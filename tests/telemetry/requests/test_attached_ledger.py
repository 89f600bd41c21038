"""The ledger of an attached engine: what is not observed is a part of its own, exactly."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.simulation.attached import attached
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import EndReason, HostProcess, PauseCause, Phase, WaitReason
from telemetry.facts.records import UNKNOWN_ROUTE, Fact
from telemetry.facts.step_parts import Skip
from telemetry.host.pauses import Pause, PauseLog
from telemetry.requests.account import NotObserved, Part, State
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
from tests.support.worlds.ledger_world import run_fold, world_facts

WORLDS = st.tuples(st.sampled_from(("chaos", "poisson", "tenants", "bursts")), st.integers(0, 5000))


def received(seq_id: int, at: int, received_ms: int) -> Fact:
    return msgspec.structs.replace(queued(seq_id, at), received_ns=received_ms * MS)


def one_request(*, ended: Fact | None = None) -> RequestTimeline:
    """Submitted at 2, received by the core at 5, queued at 7; steps [10, 20) and [20, 30); the
    front end has the last token at 33."""
    facts: list[Fact] = [
        accepted(at=0), parsed(at=1), tokenized(at=2), submitted(at=2), received(1, 7, 5),
        step(1, 10, 20, [prefill()]), step(2, 20, 30, [decode()]), sequence_ended(at=30),
        ended or request_ended(at=40, received_ns=33 * MS),
    ]  # fmt: skip
    (timeline,), _ = run_fold(facts)
    return timeline


@examples(4, 12)
@given(WORLDS, st.booleans())
def test_parts_of_any_attached_run_sum_to_the_time_of_each_request(
    world: tuple[str, int], core_only: bool
) -> None:
    """And engine-core parts are those of [received, last token), whatever is not observed."""
    timelines, _ = run_fold(attached(world_facts(*world), seed=world[1], core_only=core_only))
    assert timelines
    for timeline in timelines:
        assert timeline.account is not None
        ledger = timeline.account.ledger
        assert ledger.residue_ns == 0
        assert ledger.e2e_ns == timeline.e2e_ns
        assert all(entry.ns > 0 for entry in ledger.entries), ledger
        assert sum(p.end_ns - p.start_ns for p in timeline.phases) == timeline.e2e_ns
        assert timeline.account.is_core_only == core_only


@examples(2, 6)
@given(WORLDS)
@example(("chaos", 575))  # a client that does not read is the last to be waited for
def test_the_engine_time_is_that_of_the_same_run_observed_whole(world: tuple[str, int]) -> None:
    """Only the first wait loses what is now not observed: everything from the first step to the
    last token is the same. That a client does not read is seen by no other engine."""
    facts = world_facts(*world)
    whole = {t.accepted.request_id: t for t in run_fold(facts)[0]}
    for timeline in run_fold(attached(facts, seed=world[1]))[0]:
        known = whole[timeline.accepted.request_id]
        assert timeline.account is not None
        assert known.account is not None
        if known.account.ledger.by_part()[Part.CLIENT]:
            continue
        unseen = timeline.account.ledger.by_not_observed()
        lost = known.account.ledger.by_state() - timeline.account.ledger.by_state()
        lost += timeline.account.ledger.by_state() - known.account.ledger.by_state()
        assert set(lost) <= {State.INGEST, State.WAIT, State.DELIVER, State.RUN}
        assert unseen.total() <= 2 * MS


def test_what_passes_between_the_processes_is_not_observed() -> None:
    timeline = one_request()
    assert timeline.account is not None
    ledger = timeline.account.ledger

    assert ledger.by_not_observed() == {
        NotObserved.TO_ENGINE.value: 3 * MS,
        NotObserved.TO_FRONT_END.value: 3 * MS,
    }
    assert ledger.not_observed_ns == ledger.by_part()[Part.NOT_OBSERVED] == 6 * MS
    assert ledger.by_state()[State.RUN] == 20 * MS
    assert ledger.by_part()[Part.DETOKENIZE] == 2 * MS
    assert ledger.by_part()[Part.SEND] == 5 * MS


def test_waiting_in_the_core_behind_a_running_step_is_observed() -> None:
    """The request lies in the core's inbox while another one's prompt is computed: it pays."""
    facts: list[Fact] = [
        accepted("r2", at=0), submitted("r2", at=0, seq_id=2), received(2, 0, 0),
        accepted(at=1), parsed(at=1), tokenized(at=2), submitted(at=2),
        step(1, 0, 20, [prefill(2)]), received(1, 20, 5),
        step(2, 20, 30, [prefill()]), sequence_ended(at=30), sequence_ended(2, at=30),
        request_ended(at=40, received_ns=31 * MS),
    ]  # fmt: skip
    timeline = next(t for t in run_fold(facts)[0] if t.accepted.request_id == "r1")
    assert timeline.account is not None
    assert timeline.account.ledger.by_payer() == {"r2": 15 * MS}


def test_tokens_after_those_that_the_front_end_received_are_not_waited_for() -> None:
    """A stop string is found in the front end; the core goes on for a step."""
    timeline = one_request(ended=request_ended(at=40, received_ns=22 * MS, detokenized_ns=23 * MS))
    assert timeline.account is not None
    ledger = timeline.account.ledger

    assert ledger.by_state()[State.RUN] == 10 * MS
    assert ledger.by_not_observed()[NotObserved.TO_FRONT_END.value] == 2 * MS
    assert ledger.residue_ns == 0


def test_without_a_stamp_of_the_front_end_all_up_to_its_next_one_is_not_observed() -> None:
    timeline = one_request(ended=request_ended(at=40))
    assert timeline.account is not None
    unseen = timeline.account.ledger.by_not_observed()
    assert unseen[NotObserved.TO_FRONT_END.value] == 5 * MS


def test_a_request_that_only_the_core_knows_has_no_time_of_a_front_end() -> None:
    facts: list[Fact] = [
        accepted(at=3, route=UNKNOWN_ROUTE), parsed(at=3), tokenized(at=3), submitted(at=3),
        received(1, 7, 5),
        step(1, 10, 20, [prefill()]), step(2, 20, 30, [decode()]), sequence_ended(at=30),
        request_ended(at=32, detokenized_ns=None),
    ]  # fmt: skip
    (timeline,), _ = run_fold(facts)
    assert timeline.account is not None
    ledger = timeline.account.ledger

    assert timeline.account.is_core_only
    assert ledger.by_not_observed() == {NotObserved.FRONT_END.value: 4 * MS}
    assert [p.name for p in timeline.phases] == [
        Phase.QUEUE, Phase.PREFILL, Phase.DECODE, Phase.DETOKENIZE,
    ]  # fmt: skip
    assert not timeline.truncated


def unjoined(ended: Fact, *, attached: bool = True) -> RequestTimeline:
    """Tokenized at 2 ms, and nothing is known of a sequence."""
    facts: list[Fact] = [
        accepted(at=0, attached=attached), parsed(at=1), tokenized(at=2), ended,
    ]  # fmt: skip
    (timeline,), _ = run_fold(facts)
    return timeline


def test_a_request_of_which_no_core_has_told_is_not_observed_in_the_engine() -> None:
    """Its front end has seen it from its tokens to its last one, and that it was delivered."""
    timeline = unjoined(request_ended(at=10_000, received_ns=9_990 * MS))
    assert timeline.account is not None
    ledger = timeline.account.ledger

    assert ledger.by_not_observed() == {NotObserved.ENGINE.value: 9_988 * MS}
    assert ledger.by_part()[Part.DISPATCH] == 0
    assert ledger.by_part()[Part.DETOKENIZE] == ledger.by_part()[Part.SEND] == 5 * MS
    assert ledger.residue_ns == 0


def test_a_client_that_leaves_such_a_request_ends_it_in_the_engine() -> None:
    timeline = unjoined(request_ended(at=50, reason=EndReason.DISCONNECT, received_ns=30 * MS))
    assert timeline.account is not None
    assert timeline.account.ledger.by_not_observed() == {NotObserved.ENGINE.value: 48 * MS}
    assert timeline.account.ledger.residue_ns == 0


@pytest.mark.parametrize(
    ("attached", "reason"),
    [(True, EndReason.QUEUE_FULL), (False, EndReason.MAX_TOKENS), (False, EndReason.DISCONNECT)],
)
def test_a_request_that_was_refused_or_is_our_own_was_not_in_another_engine(
    attached: bool, reason: EndReason
) -> None:
    timeline = unjoined(request_ended(at=50, reason=reason), attached=attached)
    assert timeline.account is not None
    assert timeline.account.ledger.not_observed_ns == 0
    assert timeline.account.ledger.by_part()[Part.DISPATCH] == 48 * MS


def test_a_sequence_whose_blocks_come_from_elsewhere_waits_for_itself_alone() -> None:
    """The other one in the queue is not behind it, and the step of a third one is not charged."""
    remote = (Skip(1, WaitReason.REMOTE_KV, None), Skip(2, WaitReason.SEQS, None))
    facts: list[Fact] = [
        *(accepted(f"r{n}", at=0) for n in (1, 2, 3)),
        *(parsed(f"r{n}", at=0) for n in (1, 2, 3)),
        *(tokenized(f"r{n}", at=0) for n in (1, 2, 3)),
        *(submitted(f"r{n}", at=0, seq_id=n) for n in (1, 2, 3)),
        *(received(n, 0, 0) for n in (1, 2, 3)),
        step(1, 0, 10, [prefill(3)], remote, waiting=2),
        step(2, 10, 20, [decode(3)], remote[1:], waiting=2),
        step(3, 20, 30, [prefill(1), prefill(2)]),
        *(sequence_ended(n, at=30) for n in (1, 2, 3)),
        *(request_ended(f"r{n}", at=40) for n in (1, 2, 3)),
    ]
    accounts = {t.accepted.request_id: t.account for t in run_fold(facts)[0]}
    first, second = accounts["r1"], accounts["r2"]
    assert first is not None
    assert second is not None

    assert first.ledger.by_part()[Part.REMOTE_KV] == 10 * MS
    assert {entry.reason for entry in second.ledger.entries if entry.state is State.WAIT} == {
        WaitReason.SEQS.value
    }


def test_a_step_without_rows_is_the_work_of_the_loop() -> None:
    facts: list[Fact] = [
        accepted(at=0), parsed(at=0), tokenized(at=0), submitted(at=0), received(1, 0, 0),
        step(1, 0, 10, [prefill()]), step(2, 10, 14, []), step(3, 14, 20, [decode()]),
        sequence_ended(at=20), request_ended(at=30, received_ns=20 * MS),
    ]  # fmt: skip
    (timeline,), _ = run_fold(facts)
    assert timeline.account is not None
    entries = timeline.account.ledger.entries
    assert (
        sum(e.ns for e in entries if e.part in (Part.HOST, Part.UNATTRIBUTED, Part.GAP)) == 4 * MS
    )
    assert timeline.account.ledger.by_part()[Part.SLOW_STEP] == 0


def test_pauses_of_the_process_that_observes_delay_no_request() -> None:
    """There is no gateway of ours; pauses of the engine's process were seen from outside."""
    started = next(f for f in attached(world_facts("poisson", 1)) if isinstance(f, EngineStarted))
    pauses = [
        HostPaused(at * MS, begin * MS, at * MS, process, PauseCause.OFF_CPU)
        for process, begin, at in (
            (HostProcess.GATEWAY, 34, 39), (HostProcess.ENGINE, 7, 9),
        )
    ]  # fmt: skip
    facts = [
        msgspec.structs.replace(started, at_ns=0), accepted(at=0), parsed(at=1), tokenized(at=2),
        submitted(at=2), received(1, 7, 5), pauses[1], step(1, 10, 20, [prefill()]),
        sequence_ended(at=20), pauses[0], request_ended(at=40, received_ns=33 * MS),
    ]  # fmt: skip
    (timeline,), _ = run_fold(facts)
    seen: list[Pause] = []
    log = PauseLog(seen.append)
    log.on_facts([*facts, step(2, 1000, 1001, [])])

    assert timeline.account is not None
    stalled = [e for e in timeline.account.ledger.entries if e.part is Part.HOST_STALL]
    assert {entry.state for entry in stalled} == {State.WAIT}
    assert {pause.process for pause in seen} == {HostProcess.ENGINE}


def test_a_pause_of_the_worker_explains_no_time_between_steps() -> None:
    started = next(f for f in attached(world_facts("poisson", 1)) if isinstance(f, EngineStarted))

    def stalled_ns(of_worker: bool) -> int:
        pause = HostPaused(
            9 * MS, 7 * MS, 9 * MS, HostProcess.ENGINE, PauseCause.OFF_CPU, of_worker=of_worker
        )
        facts = [
            msgspec.structs.replace(started, at_ns=0), accepted(at=0), parsed(at=1),
            tokenized(at=2), submitted(at=2), received(1, 7, 5), pause,
            step(1, 10, 20, [prefill()]), sequence_ended(at=20),
            request_ended(at=40, received_ns=33 * MS),
        ]  # fmt: skip
        (timeline,), _ = run_fold(facts)
        assert timeline.account is not None
        return timeline.account.ledger.by_part()[Part.HOST_STALL]

    assert stalled_ns(of_worker=False) > 0
    assert stalled_ns(of_worker=True) == 0
