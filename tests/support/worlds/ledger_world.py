"""Simulated worlds with a gateway around them, for tests of the ledger.

The engine's facts come from the production scheduler and loop in virtual time; each sequence is
given a request of its own whose stamps lie where a gateway's would, at any nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lab.simulation.scenarios import build_scenario
from lab.simulation.world import World
from telemetry.facts.engine_records import SequenceEnded, SequenceQueued, StepRecorded
from telemetry.facts.reasons import EndReason
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
from tests.support.worlds.facts import TRACE


def world_facts(name: str, seed: int, dispatch_ns: int = 30_000_000) -> list[Fact]:
    """All facts of a world and of its gateway, in the order of time. The engine takes requests up
    to `dispatch_ns` after they were submitted: nobody knows why when it was idle."""
    engine = list(World(build_scenario(name, seed)).run().facts)
    gateway = gateway_facts(engine, Random(seed), dispatch_ns)
    return sorted([*gateway, *engine], key=fact_ns)


def gateway_facts(engine: Sequence[Fact], random: Random, dispatch_ns: int) -> list[Fact]:
    """A request around each sequence, and some that never got to the engine."""
    found: list[Fact] = []
    ends = _ends(engine)
    for fact in engine:
        if isinstance(fact, SequenceQueued):
            end_ns, reason = ends[fact.seq_id]
            found += _request(fact, end_ns, reason, random, dispatch_ns)
    for number in range(3):
        found += _refused(f"refused-{number}", random.randrange(10**9), random)
    return found


def run_fold(
    facts: Sequence[Fact], batches: Sequence[int] = (), itl_target_ns: int = 30_000_000
) -> tuple[list[RequestTimeline], LedgerBuilder]:
    """Feed the facts, cut into batches of these sizes in turn (all at once without)."""
    timelines: list[RequestTimeline] = []
    ledger_builder = LedgerBuilder(lambda slo_class: itl_target_ns)
    fold = PhaseFold([timelines.append], ledger_builder=ledger_builder)
    at, turn = 0, 0
    while at < len(facts):
        size = batches[turn % len(batches)] if batches else len(facts)
        fold.on_facts(facts[at : at + size])
        at, turn = at + size, turn + 1
    fold.close()
    return timelines, ledger_builder


def _ends(engine: Sequence[Fact]) -> dict[int, tuple[int, EndReason]]:
    """Sequences that lived when the engine died end then."""
    ends: dict[int, tuple[int, EndReason]] = {}
    live: set[int] = set()
    for fact in engine:
        if isinstance(fact, SequenceQueued):
            live.add(fact.seq_id)
        elif isinstance(fact, SequenceEnded):
            live.discard(fact.seq_id)
            ends[fact.seq_id] = (fact.at_ns, fact.reason)
        elif isinstance(fact, EngineDied):
            ends |= dict.fromkeys(live, (fact.at_ns, EndReason.ENGINE_DIED))
            live.clear()
    return ends


def _request(
    queued: SequenceQueued, end_ns: int, reason: EndReason, random: Random, dispatch_ns: int
) -> list[Fact]:
    request_id = f"r{queued.seq_id}"
    submitted_ns = max(0, queued.at_ns - random.randrange(dispatch_ns))
    stamps = sorted(max(0, submitted_ns - random.randrange(30_000_000)) for _ in range(4))
    accepted_ns, read_ns, parsed_ns, tokenized_ns = stamps
    text_ns = end_ns + random.randrange(5_000_000)
    finished = reason.outcome == "finished"
    return [
        _accepted(request_id, accepted_ns, queued.tenant, read_ns),
        RequestParsed(request_id, parsed_ns, "model", True, 1, 16, 1.0, 1.0, 0, None),
        RequestTokenized(request_id, tokenized_ns, queued.prompt_tokens),
        SequenceSubmitted(request_id, submitted_ns, queued.seq_id, 0),
        _ended(
            request_id,
            text_ns + random.randrange(5_000_000),
            reason,
            text_ns if finished else None,
        ),
    ]


def _refused(request_id: str, at_ns: int, random: Random) -> list[Fact]:
    end_ns = at_ns + random.randrange(1, 10**6)
    return [
        _accepted(request_id, at_ns, "refused", None),
        _ended(request_id, end_ns, EndReason.INVALID, None),
    ]


def _accepted(request_id: str, at_ns: int, tenant: str, read_ns: int | None) -> RequestAccepted:
    return RequestAccepted(
        request_id=request_id,
        at_ns=at_ns,
        trace_id=TRACE,
        parent_span_id=None,
        trace_sampled=None,
        trace_state=None,
        route="/v1/completions",
        operation="text_completion",
        tenant=tenant,
        slo_class="",
        read_ns=read_ns,
    )


def _ended(request_id: str, at_ns: int, reason: EndReason, text_ns: int | None) -> RequestEnded:
    return RequestEnded(
        request_id=request_id,
        at_ns=at_ns,
        reason=reason,
        status=200,
        error_type=None,
        output_tokens=0,
        first_sent_ns=None,
        detokenized_ns=text_ns,
        detokenize_busy_ns=0,
        bytes_sent=0,
        detected_ns=None,
    )


def steps_of(facts: Sequence[Fact]) -> list[StepRecorded]:
    return [fact for fact in facts if isinstance(fact, StepRecorded)]
