"""What the benchmarks of an attached vLLM compute from what they saw."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from benchmarks.attach.accounts import Row, core_times, row_of
from benchmarks.attach.blocks import block_of
from benchmarks.attach.client import Stream, tokens_of
from benchmarks.attach.culprits import late_gaps, median_gap_ns, named, outstanding
from benchmarks.attach.ledger import off_ns
from benchmarks.attach.mixed import KINDS, body_of, unexpected
from benchmarks.attach.overhead import (
    CONTROL,
    OFF,
    ON,
    PLAN,
    KeptBlock,
    KeptQuad,
    Place,
    Session,
    by_kind,
    missing,
    sidecar_share,
)
from benchmarks.attach.overlay import entry_points_text
from benchmarks.contract.client import NotSupported
from benchmarks.paired import Load, quad_order
from telemetry.facts.engine_records import Row as StepRow
from telemetry.facts.engine_records import SequenceEnded, SequenceQueued, StepRecorded
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, RequestEnded, SequenceSubmitted


def queued(seq_id: int, received_ns: int) -> SequenceQueued:
    return SequenceQueued(
        seq_id=seq_id, at_ns=received_ns + 5, step_id=1, prompt_tokens=4, max_tokens=2,
        tenant="default", received_ns=received_ns,
    )  # fmt: skip


def step(seq_id: int, committed_ns: int, *, wasted: bool = False) -> StepRecorded:
    row = StepRow(seq_id, False, 1, 4, 0, 1, wasted)
    stamps = dict.fromkeys(
        ("begin_ns", "planned_ns", "launched_ns", "forward_ns", "sample_ns", "collected_ns"), 0
    )
    counts = dict.fromkeys(
        ("budget_tokens", "running", "waiting", "waiting_tokens", "blocks_used", "blocks_cached",
         "blocks_total"), 0,
    )  # fmt: skip
    return StepRecorded(
        step_id=1, committed_ns=committed_ns, rows=(row,), skips=(), preempted=(), **stamps,
        **counts,
    )  # fmt: skip


def ended(request_id: str, at_ns: int, reason: EndReason, received_ns: int | None) -> RequestEnded:
    return RequestEnded(
        request_id=request_id, at_ns=at_ns, reason=reason, status=200, error_type=None,
        output_tokens=2, first_sent_ns=None, detokenized_ns=None, detokenize_busy_ns=0,
        bytes_sent=0, detected_ns=None, received_ns=received_ns,
    )  # fmt: skip


def test_time_in_the_core_is_from_received_to_the_last_token_that_the_client_got() -> None:
    """A token that the core made after the front end had stopped is not the client's."""
    facts: list[Fact] = [
        queued(7, received_ns=110),
        SequenceSubmitted("a", 100, 7, 0),
        step(7, 150), step(7, 200), step(7, 260), step(7, 300, wasted=True),
        SequenceEnded(7, 310, 4, EndReason.MAX_TOKENS, 3, 0),
        ended("a", 290, EndReason.MAX_TOKENS, received_ns=210),
    ]  # fmt: skip

    assert core_times(facts) == {"a": 200 - 110}


def test_time_in_the_core_of_an_aborted_request_ends_with_its_sequence() -> None:
    """But never after the request itself; one with two sequences is not compared."""
    facts: list[Fact] = [
        SequenceSubmitted("a", 100, 7, 0), queued(7, received_ns=110), step(7, 150),
        ended("a", 400, EndReason.DISCONNECT, None),
        SequenceEnded(7, 380, 4, EndReason.DISCONNECT, 1, 0),
        SequenceSubmitted("b", 100, 8, 0), SequenceSubmitted("b", 100, 9, 1),
        ended("b", 400, EndReason.DISCONNECT, None),
    ]  # fmt: skip

    assert core_times(facts) == {"a": 380 - 110}


def account(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "request_id": "a", "outcome": "finished", "e2e_ns": 100, "accepted_ns": 1000,
        "ended_ns": 1100, "cached_tokens": 0, "sequences": [{"preempted": []}],
        "ledger": {"entries": entries},
    }  # fmt: skip


def test_a_row_sums_its_account_up() -> None:
    """Core time leaves out ingest, delivery and what is not observed."""
    row = row_of("completion", account([
        {"state": "ingest", "part": "parse", "ns": 10},
        {"state": "ingest", "part": "not_observed", "reason": "to_engine", "ns": 5},
        {"state": "run", "part": "own_decode", "ns": 70},
        {"state": "wait", "part": "gap", "ns": 10},
        {"state": "deliver", "part": "send", "ns": 4},
    ]))  # fmt: skip

    assert (row.core_ns, row.residue_ns, row.not_observed_share) == (80, -1, 0.05)
    assert off_ns([row], {"a": 83, "b": 1}) == [3]


def stream(name: str, sent_ns: int, token_ns: list[int]) -> Stream:
    return Stream(name, sent_ns=sent_ns, token_ns=token_ns, status=200, finish="length")


def test_a_late_gap_is_judged_by_the_prompt_that_was_outstanding_in_most_of_it() -> None:
    """And by the stall of the account that shares most of the gap."""
    steady = {"d": stream("d", 0, [100, 110, 120, 130, 180, 190])}
    longs = [stream("long-0", 20, [125]), stream("long-1", 128, [178])]
    ((name, begin_ns, end_ns),) = late_gaps(steady, 2 * median_gap_ns(steady))
    stalls = [
        {"begin_ns": 110, "end_ns": 131, "culprit_request_id": "long-0"},
        {"begin_ns": 130, "end_ns": 180, "culprit_request_id": "long-1"},
    ]

    assert (name, begin_ns, end_ns) == ("d", 130, 180)
    assert outstanding(longs, begin_ns, end_ns) == "long-1"
    assert named({"stalls": stalls}, begin_ns, end_ns) == "long-1"
    assert outstanding(longs, 190, 200) is None
    assert named({}, begin_ns, end_ns) is None


def test_tokens_of_one_piece_have_no_gap_between_them() -> None:
    """A piece with two tokens counts both, with one stamp."""
    found = Stream("a")
    for ids, finish in (([1, 2], None), ([3], "length")):
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish}
        found.take(json.dumps({"choices": [choice]}).encode())
    found.status = 200

    assert (len(found.token_ns), len(found.gaps_ns), found.is_whole) == (3, 1, True)


def test_a_block_counts_gaps_while_all_streams_decode() -> None:
    """Before the last has begun and after the first has ended it is chance who meets whom."""
    users = [[stream("a", 0, [10, 20, 30, 40])], [stream("b", 0, [15, 25, 35, 45])]]
    block = block_of(users, Load(2, 16, 4), OFF, 0)

    assert sorted(block.gaps_ms) == pytest.approx([1e-5] * 4)
    with pytest.raises(NotSupported, match="not whole"):
        block_of([[Stream("c", error="closed")]], Load(1, 16, 4), OFF, 0)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_user_has_a_body_and_an_expected_answer(kind: str) -> None:
    """A refused one must be refused, the others must be whole."""
    import random

    body = body_of(kind, random.Random(1))
    whole = Stream("a", status=200, finish="length")

    assert "logprobs" not in body
    assert body["return_token_ids"]
    assert (unexpected(kind, whole) is None) == (kind != "refused")
    assert unexpected(kind, Stream("a", status=500, error="x")) is not None
    assert tokens_of("x", 4, ignore_eos=None).get("ignore_eos") is None


def quad(session: Session, number: int, other: str, share: float | None) -> KeptQuad:
    blocks = [
        KeptBlock(state=state, tokens_per_s=90.0 if state == other else 100.0, gaps_ms=[1.0],
                  seconds=2.0, sidecar_s=share if state == ON else None)
        for state in quad_order(OFF, other, number)
    ]  # fmt: skip
    return KeptQuad(session=session, number=number, blocks=blocks)


def test_pairs_have_the_base_first_whatever_the_order_was(tmp_path: Any) -> None:
    """Control and cost are kept apart; the sidecar's CPU is of the blocks that it watched."""
    quads = [quad(Session.FIRST, 0, ON, 0.1), quad(Session.SECOND_EQUAL, 1, CONTROL, None)]
    place = Place(tmp_path)
    for one in quads:
        place.keep(PLAN.index(one.session), one)
    pairs = by_kind(place.read())

    assert {kind: len(found) for kind, found in pairs.items()} == {ON: 2, CONTROL: 2}
    assert all(base.state == OFF for found in pairs.values() for base, _ in found)
    assert sidecar_share(quads) == pytest.approx(0.05)
    assert missing(place, 2, 2) == [(0, PLAN[0], [1]), (1, PLAN[1], [0])]


def test_the_plan_of_sessions_is_fair_to_both_servers() -> None:
    """Either server is the base equally often, with the plugin and in the control."""
    counts = Counter((session.is_control, session.is_first) for session in PLAN)

    assert set(counts.values()) == {1}


def test_entry_points_are_written_as_an_installer_writes_them() -> None:
    """A section for each group."""
    text = entry_points_text({"entry-points": {"vllm.general_plugins": {"phasescope": "a.b:c"}}})

    assert text == "[vllm.general_plugins]\nphasescope = a.b:c\n"


def test_a_request_without_time_has_no_share() -> None:
    """Of a refused request that took no time, nothing is unseen."""
    row = Row("a", "refused", "rejected", 0, 0, 0, 0, Counter(), Counter(), 0, 0)

    assert row.not_observed_share == 0
