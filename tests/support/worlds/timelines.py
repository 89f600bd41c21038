"""Timelines of whole requests, for tests of what is folded from them."""

from __future__ import annotations

import dataclasses

import msgspec

from telemetry.facts.clock import read_wall_anchor
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import Skip
from telemetry.facts.traceparent import new_trace_id
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
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


def timeline_of(facts: list[Fact]) -> RequestTimeline:
    """The timeline of the one request in the facts."""
    found: list[RequestTimeline] = []
    PhaseFold([found.append]).on_facts(facts)
    (timeline,) = found
    return timeline


def finished(shift_ms: int = 0, **fields: object) -> RequestTimeline:
    """A finished request with a preemption, moved in time by `shift_ms`."""
    s = shift_ms
    return timeline_of(
        [
            accepted(at=s, **fields),
            parsed(at=s + 1),
            tokenized(at=s + 2),
            submitted(at=s + 2),
            queued(at=s + 3),
            step(0, s + 10, s + 20, [prefill(sampled=False)]),
            step(1, s + 20, s + 30, [prefill(context=4)]),
            step(2, s + 30, s + 40, [], (Skip(1, WaitReason.PREEMPTED, None),), preempted=(1,)),
            step(3, s + 40, s + 50, [prefill(tokens=9)]),
            step(4, s + 50, s + 55, [decode()]),
            sequence_ended(at=s + 55),
            request_ended(at=s + 70),
        ]
    )


def now_ms() -> int:
    return read_wall_anchor().monotonic_ns // MS


def fresh(count: int) -> list[RequestTimeline]:
    """`count` requests that ended a moment ago, each with its own trace."""
    timeline = finished(now_ms() - 1000)
    return [
        dataclasses.replace(
            timeline,
            accepted=msgspec.structs.replace(
                timeline.accepted, request_id=f"r{index}", trace_id=new_trace_id()
            ),
        )
        for index in range(count)
    ]
