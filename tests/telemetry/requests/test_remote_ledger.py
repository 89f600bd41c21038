"""The ledger of a request that was at an engine node: exact, whatever the two clocks do."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from telemetry.facts.fleet.sequence_records import (
    ReceivedRow,
    RemoteAccount,
    RemoteAccounted,
    RemotePart,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.ledger.builder import LedgerBuilder
from telemetry.requests.account import NotObserved, Part
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline

MS = 1_000_000


def timeline_of(
    reason: EndReason, account: RemoteAccount | None, arrived_ms: int, ended_ms: int
) -> RequestTimeline:
    found: list[RequestTimeline] = []
    fold = PhaseFold([found.append], (), LedgerBuilder(lambda name: 10**9))
    facts: list[Fact] = [
        RequestAccepted("r", 0, "a" * 32, None, None, None, "/", "chat", "", ""),
        RequestParsed("r", 1 * MS, "m", True, 1, 4, 1.0, 1.0, 0, None),
        RequestTokenized("r", 2 * MS, 3),
        SequenceSubmitted("r", 3 * MS, 1, 0),
        SequenceSent(4 * MS, 1, "n0", 5),
        TokensReceived(10 * MS, "n0", (ReceivedRow(1, 2),)),
        RequestEnded(
            "r", ended_ms * MS, reason, 200, None, 2, 11 * MS, arrived_ms * MS, 0, 1, None
        ),
        RemoteAccounted(arrived_ms * MS, 1, "n0", 5, reason, account),
    ]  # fmt: skip
    fold.on_facts(facts)
    assert len(found) == 1
    return found[0]


SAID = (RemotePart("own_decode", 4 * MS), RemotePart("send", 2 * MS, "deliver"))
ACCOUNT = RemoteAccount(10**15, 10**15 + 6 * MS, SAID)


def test_a_finished_request_has_the_gateways_parts_the_nodes_and_the_wire() -> None:
    timeline = timeline_of(EndReason.EOS, ACCOUNT, arrived_ms=12, ended_ms=14)
    assert timeline.account is not None
    ledger = timeline.account.ledger
    assert ledger.residue_ns == 0
    found = {part: spent // MS for part, spent in ledger.by_part().items() if spent}
    assert found == {
        Part.PARSE: 1, Part.TOKENIZE: 1, Part.DISPATCH: 2, Part.OWN_DECODE: 4, Part.SEND: 4,
        Part.WIRE: 2,
    }  # fmt: skip
    assert not timeline.truncated
    assert timeline.sequences[0].engine == "n0"
    sends = {entry.reason: entry.ns for entry in ledger.entries if entry.part is Part.SEND}
    assert sends == {"node": 2 * MS, "": 2 * MS}


def test_without_an_account_the_time_at_the_node_is_not_observed() -> None:
    timeline = timeline_of(EndReason.ENGINE_DIED, None, arrived_ms=12, ended_ms=14)
    assert timeline.account is not None
    ledger = timeline.account.ledger
    assert ledger.residue_ns == 0
    assert ledger.by_not_observed() == {NotObserved.AT_NODE.value: 8 * MS}


def test_what_came_after_the_last_output_of_a_cancelled_request_is_not_observed() -> None:
    timeline = timeline_of(EndReason.DISCONNECT, ACCOUNT, arrived_ms=12, ended_ms=20)
    assert timeline.outcome is Outcome.CANCELLED
    assert timeline.account is not None
    ledger = timeline.account.ledger
    assert ledger.residue_ns == 0
    assert ledger.by_not_observed() == {NotObserved.AT_NODE.value: 8 * MS}


@given(st.integers(0, 30), st.integers(11, 30), st.sampled_from(list(EndReason)))
def test_the_parts_add_up_however_a_request_ends(
    arrived_ms: int, ended_ms: int, reason: EndReason
) -> None:
    if reason is EndReason.END_LOST:
        return
    timeline = timeline_of(reason, ACCOUNT, max(4, arrived_ms), ended_ms)
    assert timeline.account is not None
    assert timeline.account.ledger.residue_ns == 0
    assert dataclasses.replace(timeline).e2e_ns == ended_ms * MS
