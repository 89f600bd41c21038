"""The ledger, phases, spans and views of a request that a node of the fleet served."""

from __future__ import annotations

import io
import itertools

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from rich.console import Console

from dashboards.explain import Explained, render
from telemetry.clocks.boundaries import ClockFinding, RemoteSpan
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.facts.clock import WallAnchor
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    ReceivedRow,
    RemoteAccount,
    RemoteAccounted,
    RemoteAdmitted,
    RemotePart,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason, Phase
from telemetry.facts.records import Fact
from telemetry.journal.live_requests import LiveRequests
from telemetry.ledger.builder import LedgerBuilder
from telemetry.ledger.remote import NODE
from telemetry.requests.account import Entry, NotObserved, Part, State
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.timelines import describe
from telemetry.traces.spans import SpanBuilder
from tests.support.worlds.facts import MS, accepted, parsed, request_ended, submitted, tokenized
from tests.support.worlds.ledger_world import run_fold
from tests.support.worlds.skewed_fleet import SkewedFleet

PARTS = (RemotePart("own_prefill", 30 * MS), RemotePart("own_decode", 10 * MS))
ACCOUNT = RemoteAccount(0, 40 * MS, PARTS, 30 * MS)


def facts_of(
    account: RemoteAccount | None = ACCOUNT, end: int = 60, is_bounded: bool = True
) -> list[Fact]:
    """A request that is sent at 5 ms to a node, whose last output arrives at 50."""
    begin: list[Fact] = [accepted(), parsed(), tokenized(), submitted(at=4)]
    if is_bounded:  # the node's clock is 7 ms behind; a frame takes 0.2 ms and 0.3 ms
        stamps = (0, -7 * MS + 200_000, -7 * MS + 200_000)
        begin.append(ClockSampled(500_000, "n", 1, *stamps))
    back = RemoteAccounted(50 * MS, 1, "n", 1, EndReason.MAX_TOKENS, account, 38 * MS)
    return [
        *begin,
        SequenceSent(5 * MS, 1, "n", 1),
        RemoteAdmitted(9 * MS, 1, "n", 4, 0, 0),
        *(TokensReceived(at * MS, "n", (ReceivedRow(1, 1),)) for at in (38, 45, 50)),
        back,
        request_ended(at=end),
    ]


def timeline_of(facts: list[Fact]) -> RequestTimeline:
    (timeline,), _ = run_fold(facts)
    return timeline


def entries_of(timeline: RequestTimeline) -> tuple[Entry, ...]:
    assert timeline.account is not None
    assert timeline.account.ledger.residue_ns == 0
    return timeline.account.ledger.entries


def test_gateway_node_and_wire_add_up_for_every_request_of_a_fleet() -> None:
    """Clocks up to 100 s apart, drift, and clocks that are set meanwhile."""
    for with_jumps in (False, True):
        unobserved_ns = 0
        for seed in range(2):
            fleet = SkewedFleet(seed, requests=200, with_jumps=with_jumps)
            timelines, builder = run_fold(fleet.facts)
            assert len(timelines) == 200
            assert builder.live == 0
            for timeline in timelines:
                entries = entries_of(timeline)
                assert all(e.ns > 0 for e in entries if e.part is not Part.WIRE)
                phases = timeline.phases
                assert [p.end_ns for p in phases[:-1]] == [p.start_ns for p in phases[1:]]
                unobserved_ns += sum(e.ns for e in entries if e.part is Part.NOT_OBSERVED)
        assert bool(unobserved_ns) == with_jumps


def test_the_parts_of_a_request_are_the_gateways_the_nodes_and_the_wire() -> None:
    timeline = timeline_of(facts_of(RemoteAccount(-1 * MS, 39 * MS, PARTS, 29 * MS)))
    found = {(e.state, e.part): e.ns for e in entries_of(timeline)}

    assert found[State.RUN, Part.OWN_PREFILL] == 30 * MS
    assert found[State.RUN, Part.OWN_DECODE] == 10 * MS
    assert found[State.WIRE, Part.WIRE_OUT] + found[State.WIRE, Part.WIRE_BACK] == 5 * MS
    assert found[State.INGEST, Part.DISPATCH] == 3 * MS
    names = [p.name.value for p in timeline.phases]
    engine = ["queue", "prefill", "decode"]
    assert names == ["gateway.parse", "tokenize", *engine, "detokenize", "deliver"]
    assert [p.end_ns // MS for p in timeline.phases][:5] == [1, 2, 9, 38, 50]
    assert timeline.ttft_ns == 38 * MS
    assert timeline.tpot_ns == 6 * MS


@pytest.mark.parametrize(("waited_ms", "queue_ends_ms"), [(None, 38), (20, 25), (99, 38)])
def test_queue_ends_when_the_sequence_came_into_the_batch_not_with_the_news_of_it(
    waited_ms: int | None, queue_ends_ms: int
) -> None:
    """The news comes with the first token. A wait that ends after that cannot be."""
    facts = [fact for fact in facts_of() if not isinstance(fact, RemoteAdmitted)]
    sent = next(place for place, fact in enumerate(facts) if isinstance(fact, SequenceSent))
    waited_ns = None if waited_ms is None else waited_ms * MS
    facts.insert(sent + 1, RemoteAdmitted(38 * MS, 1, "n", 4, 0, 0, waited_ns))
    ends = {phase.name: phase.end_ns for phase in timeline_of(facts).phases}

    assert ends[Phase.QUEUE] == queue_ends_ms * MS
    assert ends[Phase.PREFILL] == 38 * MS


def test_the_wire_is_one_part_where_the_clocks_do_not_allow_to_split_it() -> None:
    found = {e.part: e.ns for e in entries_of(timeline_of(facts_of(is_bounded=False)))}

    assert found[Part.WIRE] == 5 * MS
    assert Part.WIRE_OUT not in found


def test_a_wire_that_drift_makes_negative_is_said_and_the_sum_holds() -> None:
    account = RemoteAccount(0, 45 * MS + 5000, (RemotePart("gap", 45 * MS + 5000),))
    timeline = timeline_of(facts_of(account))
    found = {e.part: e.ns for e in entries_of(timeline)}

    assert found[Part.WIRE] == -5000
    (sequence,) = timeline.sequences
    assert sequence.remote is not None
    assert ClockFinding.WITHIN_DRIFT in sequence.remote.findings


@pytest.mark.parametrize(
    "account",
    [None, RemoteAccount(0, 100 * MS, (RemotePart("gap", 100 * MS),))],
    ids=["none", "longer than the time here"],
)
def test_a_node_that_cannot_be_believed_leaves_its_time_unobserved(
    account: RemoteAccount | None,
) -> None:
    entries = entries_of(timeline_of(facts_of(account)))
    (unseen,) = [e for e in entries if e.part is Part.NOT_OBSERVED]

    assert (unseen.ns, unseen.reason) == (45 * MS, NotObserved.AT_NODE.value)
    assert [e.part for e in entries if e.state is State.RUN] == [Part.NOT_OBSERVED]


def test_a_request_that_ended_before_its_node_is_not_charged_more_than_its_time() -> None:
    """Its client left; the node's account is of more than the request."""
    (unseen,) = [
        e for e in entries_of(timeline_of(facts_of(end=20))) if e.part is Part.NOT_OBSERVED
    ]

    assert unseen.ns == 15 * MS


def test_a_cancelled_request_is_accounted_for_until_the_last_output_that_counted() -> None:
    """The node goes on until it is told; its account ends with what the gateway had read."""
    reason = EndReason.DISCONNECT
    account = RemoteAccount(0, 10 * MS, (RemotePart("own_prefill", 10 * MS),))
    seen = RemoteAccounted(20 * MS, 1, "n", 1, reason, account)
    facts = [f for f in facts_of() if not isinstance(f, RemoteAccounted)][:-4]
    entries = entries_of(timeline_of([*facts, seen, request_ended(at=26, reason=reason)]))
    found = {(e.state, e.part): e.ns for e in entries}

    assert found[State.RUN, Part.OWN_PREFILL] == 10 * MS
    assert found[State.RUN, Part.NOT_OBSERVED] == 6 * MS
    assert found[State.WIRE, Part.WIRE_OUT] + found[State.WIRE, Part.WIRE_BACK] == 5 * MS


def test_words_that_this_gateway_does_not_have_are_unobserved_and_its_own_are_told_apart() -> None:
    """A node may be newer. Reasons of what is not observed are labels of a metric, so a node
    cannot make them up."""
    parts = (
        RemotePart("quantum", 10 * MS),
        RemotePart("own_decode", 10 * MS, state="entangled"),
        RemotePart("not_observed", 10 * MS, state="run", reason="x" * 50),
        RemotePart("dispatch", 10 * MS, state="ingest"),
    )
    entries = entries_of(timeline_of(facts_of(RemoteAccount(0, 40 * MS, parts))))
    unseen = [e for e in entries if e.part is Part.NOT_OBSERVED]

    assert sum(e.ns for e in unseen) == 30 * MS
    assert {e.reason for e in unseen} == {NotObserved.AT_NODE.value}
    dispatched = {e.reason: e.ns for e in entries if e.part is Part.DISPATCH}
    assert dispatched == {"": 3 * MS, NODE: 10 * MS}


def test_the_spans_of_the_wire_and_the_node_tile_the_remote_span() -> None:
    facts = facts_of(RemoteAccount(-1 * MS, 39 * MS, PARTS, 29 * MS))
    ids = (f"{number:016x}" for number in itertools.count(1))
    builder = SpanBuilder(Resource({}), lambda: next(ids))
    spans = {s.name: s for s in builder.build(timeline_of(facts), WallAnchor(0, 0))}
    parent, inner = spans["remote"], [spans[n] for n in ("wire.out", "node", "wire.back")]

    assert parent.context is not None
    assert parent.parent == spans["text_completion model"].context
    assert all(span.parent == parent.context for span in inner)
    borders = [parent.start_time, *(span.end_time for span in inner)]
    assert [span.start_time for span in inner] == borders[:-1]
    assert borders[-1] == parent.end_time
    shown = parent.attributes or {}
    assert shown["phasescope.engine.name"] == "n"
    assert (
        shown["phasescope.clock.offset_low_ns"]
        <= -7 * MS
        <= shown["phasescope.clock.offset_high_ns"]
    )  # type: ignore[operator]
    assert 0 < shown["phasescope.clock.epsilon_ns"] < MS  # type: ignore[operator]
    assert all("phasescope.clock.epsilon_ns" in (span.attributes or {}) for span in inner)


def test_explain_says_where_the_request_was_and_what_the_clocks_allow_to_say() -> None:
    facts = facts_of(RemoteAccount(-1 * MS, 39 * MS, PARTS, 29 * MS))
    said = msgspec.json.decode(msgspec.json.encode(describe(timeline_of(facts))), type=Explained)
    console = Console(file=io.StringIO(), width=200)
    console.print(render(said))
    shown = console.file.getvalue()  # type: ignore[attr-defined]

    assert "was at node n (0000000000000001); wire 5.000 ms; out" in shown
    assert "wire_out" in shown
    assert "its clock is ahead by -7." in shown


def test_the_journal_carries_to_which_node_a_live_sequence_was_sent() -> None:
    live = LiveRequests()
    facts = facts_of()
    sent = next(i for i, fact in enumerate(facts) if isinstance(fact, SequenceSent))
    for fact in facts[: sent + 1]:
        live.take(fact)
    (carried,) = live.encoded()
    assert b"SequenceSent" in carried
    for fact in facts[sent + 1 :]:
        live.take(fact)
    assert live.live == 0


class EstimatesBothWays(FleetClocks):
    """As if the way back were read off the offset too, instead of being the rest of the wire."""

    def accounted(self, fact: RemoteAccounted) -> RemoteSpan | None:
        span = super().accounted(fact)
        if span is None or span.split is None or span.last_emission is None:
            return span
        back_ns = span.arrived_ns - span.last_emission.at_ns
        split = msgspec.structs.replace(span.split, back_ns=back_ns)
        return msgspec.structs.replace(span, split=split)


def test_a_split_that_is_not_made_to_add_up_is_seen_in_the_sum() -> None:
    timelines: list[RequestTimeline] = []
    ledger = LedgerBuilder(lambda slo_class: MS)
    fold = PhaseFold([timelines.append], ledger_builder=ledger)
    fold.clocks = EstimatesBothWays()
    fold.on_facts(SkewedFleet(0, requests=50).facts)
    fold.close()
    off = [t for t in timelines if t.account is not None and t.account.ledger.residue_ns]

    assert len(off) > 25


def test_a_sequence_whose_account_never_comes_is_forgotten() -> None:
    fold = PhaseFold()
    facts = [fact for fact in facts_of() if not isinstance(fact, RemoteAccounted)]
    fold.on_facts([*facts, accepted("r2", at=5000)])

    assert fold.live == 1
    assert fold.clocks.live == 1  # the node
