"""Ended requests by number: bounded, followed by a cursor, without any text of a client."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from telemetry.facts.records import RequestAccepted
from telemetry.requests.account import Account, Entry, Ledger, Part, Stall, State
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.request_list import RequestList, RequestsPage
from telemetry.requests.slo_policy import DEFAULT_POLICY
from telemetry.stats.slo import judged_by
from tests.support.worlds.facts import MS, accepted
from tests.support.worlds.timelines import finished


def filled(count: int, capacity: int = 100) -> RequestList:
    made = RequestList(judged_by(DEFAULT_POLICY), run_ns=77, capacity=capacity)
    for number in range(count):
        made.on_timeline(named(f"r{number}", tenant="red"))
    return made


def named(request_id: str, **fields: str) -> RequestTimeline:
    timeline = finished(**fields)
    accepted = msgspec.structs.replace(timeline.accepted, request_id=request_id)
    return dataclasses.replace(timeline, accepted=accepted)


def asked(
    made: RequestList, since: int, most: int = 1000, live: tuple[RequestAccepted, ...] = ()
) -> RequestsPage:
    return msgspec.json.decode(made.since(since, most, live, len(live), 5), type=RequestsPage)


def ids(page: RequestsPage) -> list[str]:
    return [one.request_id for one in page.requests]


def test_a_reader_that_asks_by_number_gets_each_request_once() -> None:
    made = filled(5)
    first = asked(made, 0, most=2)
    second = asked(made, first.next)

    assert ids(first) + ids(second) == ["r0", "r1", "r2", "r3", "r4"]
    assert (first.next, second.next, second.ended, second.run_ns) == (2, 5, 5, 77)
    assert ids(asked(made, second.next)) == []


def test_the_oldest_requests_are_dropped_and_a_reader_that_is_late_goes_on_with_what_is_left() -> (
    None
):
    made = filled(10, capacity=3)

    assert ids(asked(made, 2)) == ["r7", "r8", "r9"]
    assert asked(made, 2).next == 10


def test_a_number_of_another_run_gets_all_that_is_kept() -> None:
    assert ids(asked(filled(2), 9000)) == ["r0", "r1"]


def test_a_line_has_times_tokens_verdict_and_who_took_most() -> None:
    stall = Stall(
        seq_id=1, begin_ns=0, end_ns=9 * MS, target_ns=MS, part=Part.CO_PREFILL, part_ns=8 * MS
    )
    entries = [Entry(State.RUN, Part.CO_PREFILL, n * MS, "", f"long-{n}") for n in range(1, 7)]
    entries.append(Entry(State.RUN, Part.HOST_STALL, 99 * MS, "", "gc"))
    account = Account(Ledger(70 * MS, tuple(entries)), (stall,), stalls_cut=2)
    made = RequestList(judged_by(DEFAULT_POLICY), run_ns=0)
    timeline = finished(slo_class="voice", tenant="blue")

    made.on_timeline(dataclasses.replace(timeline, account=account))

    (line,) = asked(made, 0).requests
    assert (line.e2e_ns, line.slo_class, line.tenant, line.verdict) == (
        70 * MS, "voice", "blue", "good",
    )  # fmt: skip
    assert (line.late_tokens, line.late_most_ns) == (3, 9 * MS)
    assert [taker.request_id for taker in line.takers] == ["long-6", "long-5", "long-4", "long-3"]
    assert sum(line.phases_ns.values()) == 70 * MS


def test_the_class_of_a_line_is_the_one_that_counted_it() -> None:
    made = RequestList(judged_by(DEFAULT_POLICY), run_ns=0)
    made.on_timeline(finished(slo_class="no such class"))

    assert asked(made, 0).requests[0].slo_class == DEFAULT_POLICY.default


def test_requests_in_flight_are_beside_the_ended_ones() -> None:
    live = (accepted("slow", at=3, tenant="red"),)

    page = asked(filled(1), 1, live=live)

    assert (page.live[0].request_id, page.live[0].accepted_ns, page.live_total) == (
        "slow", 3 * MS, 1,
    )  # fmt: skip


def test_a_line_is_small() -> None:
    """Ten thousand of them are a few megabytes."""
    made = RequestList(judged_by(DEFAULT_POLICY), run_ns=0)
    made.on_timeline(named("r" * 64, tenant="t" * 64))
    page: dict[str, Any] = msgspec.json.decode(made.since(0, 1, (), 0, 0))

    assert len(msgspec.json.encode(page["requests"][0])) < 800
