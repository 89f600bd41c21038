"""Cuts a request's time into intervals of one state, and charges each.

    accepted     submitted                                     last token       ended
       +--ingest-----+--wait--+--run--+--skip--+--run--+-- ... ----+----deliver----+

In the engine a sequence runs while a step has a row of it. Otherwise it waits for the reason that
the scheduler recorded, or, without one, for the next plan, which is made when the running step
ends. Where steps overlap, a step that has begun waits for the one in flight.

What is not observed of an attached engine is cut out first (`telemetry.requests.engine_span`). From
the time at which the engine core's process received it, a sequence waits for the next plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from telemetry.facts.reasons import EndReason, Outcome, WaitReason
from telemetry.ledger.charging import Charger
from telemetry.ledger.tape import At, Tape
from telemetry.ledger.track import Track
from telemetry.requests.account import Part, State
from telemetry.requests.engine_span import engine_span, unseen_engine, unseen_of
from telemetry.requests.kv_accounts import parts_within
from telemetry.requests.phases import RequestTimeline, SequenceTimeline, WaitSpan

NEXT_STEP = "next_step"
IN_FLIGHT = "in_flight"
_OWN_CAUSES = {
    WaitReason.GRAMMAR: Part.GRAMMAR,
    WaitReason.ADAPTER: Part.ADAPTER,
    WaitReason.CLIENT_PAUSE: Part.CLIENT,
    WaitReason.REMOTE_KV: Part.REMOTE_KV,
}


def charge_request(
    charger: Charger,
    timeline: RequestTimeline,
    sequence: SequenceTimeline,
    track: Track,
    tape: Tape,
) -> None:
    """Charge all of [accepted, ended): before the engine, in the engine, after it."""
    span = engine_span(timeline, sequence)
    charge_ingest(charger, timeline, span.submitted_ns)
    for reason, start_ns, stop_ns in unseen_of(timeline, span):
        state = State.INGEST if start_ns < span.received_ns else State.DELIVER
        charger.charge(state, reason.value, Part.NOT_OBSERVED, start_ns, stop_ns)
    charge_engine(charger, sequence, track, tape, span.received_ns, span.ends_ns)
    charge_delivery(charger, timeline, span.arrived_ns)


def charge_without_engine(charger: Charger, timeline: RequestTimeline) -> None:
    """Charge all of [accepted, ended) of a request without a sequence: it ended before it had one,
    or its engine is not observed."""
    unseen = unseen_engine(timeline)
    if unseen is None:
        charge_ingest(charger, timeline, timeline.ended.at_ns)
        return
    charge_ingest(charger, timeline, unseen.start_ns)
    reason, start_ns, stop_ns = unseen
    charger.charge(State.RUN, reason.value, Part.NOT_OBSERVED, start_ns, stop_ns)
    charge_delivery(charger, timeline, stop_ns)


def charge_delivery(charger: Charger, timeline: RequestTimeline, arrived_ns: int) -> None:
    """Charge [arrived, ended): the last token becomes text, which is sent."""
    end_ns = timeline.ended.at_ns
    text_ns = timeline.ended.detokenized_ns if timeline.outcome is Outcome.FINISHED else None
    if text_ns is None:
        text_ns = arrived_ns
    text_ns = max(arrived_ns, min(text_ns, end_ns))
    charger.charge_gateway(State.DELIVER, Part.DETOKENIZE, arrived_ns, text_ns)
    charger.charge_gateway(State.DELIVER, Part.SEND, text_ns, end_ns)


def charge_ingest(charger: Charger, timeline: RequestTimeline, until_ns: int) -> None:
    """Charge [accepted, until) to the gateway's stages."""
    at_ns = timeline.accepted.at_ns
    until_ns = max(at_ns, until_ns)
    read_ns = timeline.accepted.read_ns
    parsed, tokenized = timeline.parsed, timeline.tokenized
    stages = [
        (Part.ACCEPT, at_ns if read_ns is None else read_ns),
        (Part.PARSE, parsed.at_ns if parsed else until_ns),
        (Part.TOKENIZE, tokenized.at_ns if tokenized else until_ns),
    ]
    for part, border_ns in stages:
        stop_ns = max(at_ns, min(border_ns, until_ns))
        charger.charge_gateway(State.INGEST, part, at_ns, stop_ns)
        at_ns = stop_ns
    charger.charge_gateway(State.INGEST, Part.DISPATCH, at_ns, until_ns)


def charge_engine(
    charger: Charger,
    sequence: SequenceTimeline,
    track: Track,
    tape: Tape,
    begin_ns: int,
    end_ns: int,
) -> None:
    """Charge [begin, end) of a sequence in the engine: steps with a row of it, and the time between
    them."""
    at_ns = begin_ns
    resumed_ns = [w.end_ns for w in sequence.waits if w.reason is WaitReason.CLIENT_PAUSE]
    for begun_ns, start_ns, stop_ns in _runs(track, tape, begin_ns, end_ns, resumed_ns):
        begun_ns = max(at_ns, min(begun_ns, start_ns))
        _charge_waits(charger, sequence, at_ns, begun_ns)
        charger.charge_steps(
            State.SKIP if at_ns > begin_ns else State.WAIT, IN_FLIGHT, begun_ns, start_ns
        )
        charger.charge_steps(State.RUN, "", start_ns, stop_ns)
        at_ns = stop_ns
    if sequence.end_reason is EndReason.ENGINE_DIED and track.steps:
        charger.charge(State.RUN, "", Part.LOST_STEP, at_ns, end_ns)
    else:
        _charge_waits(charger, sequence, at_ns, end_ns)


def _runs(
    track: Track, tape: Tape, begin_ns: int, end_ns: int, resumed_ns: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Runs of successive steps with a row, within [begin, end). Of each: when its first step began,
    when the body of that step starts, and when the body of its last step ends. A new one starts
    where the client reads again, for the engine may have had no step meanwhile."""
    first, stop = tape.overlapping(begin_ns, end_ns)
    steps = track.steps
    place, end = bisect_left(steps, first), bisect_left(steps, stop)
    if 0 < place < end and first > tape.first and steps[place - 1] == steps[place] - 1:
        place -= 1  # the gap before a step belongs to the run that the step continues
    runs: list[tuple[int, int, int]] = []
    borders = sorted(
        bisect_left(steps, at_ns, place, end, key=lambda step: tape.stamp(step, At.START))
        for at_ns in resumed_ns
    )
    for border in (*borders, end):
        while place < border:
            last = _last_of_run(steps, place, border)
            begun_ns, start_ns = (tape.stamp(steps[place], at) for at in (At.BEGUN, At.START))
            runs.append((begun_ns, start_ns, tape.stamp(steps[last], At.END)))
            place = last + 1
    cut = ((begun_ns, max(a, begin_ns), min(b, end_ns)) for begun_ns, a, b in runs)
    return [run for run in cut if run[1] < run[2]]


def _last_of_run(steps: Sequence[int], place: int, end: int) -> int:
    """The last index of the run of consecutive steps that begins at index `place`. Found by
    doubling, then bisection: a sequence has a row in nearly every step while it is live."""
    reach = 1
    while place + reach < end and steps[place + reach] - steps[place] == reach:
        reach *= 2
    low, high = place + reach // 2, min(place + reach, end)
    while high - low > 1:
        middle = (low + high) // 2
        if steps[middle] - steps[place] == middle - place:
            low = middle
        else:
            high = middle
    return low


def _charge_waits(charger: Charger, sequence: SequenceTimeline, begin_ns: int, end_ns: int) -> None:
    """Charge time without a row: what it waited for while another engine computed its prompt, the
    recorded waits in order, and the time between them."""
    kv = sequence.kv
    if kv is not None and max(begin_ns, kv.begin_ns) < min(end_ns, kv.end_ns):
        first_ns, last_ns = max(begin_ns, kv.begin_ns), min(end_ns, kv.end_ns)
        _charge_own_waits(charger, sequence, begin_ns, first_ns)
        for kv_part, spent_ns in parts_within(kv, first_ns, last_ns):
            charger.charge_duration(State.WAIT, kv_part.value, Part(kv_part.value), spent_ns)
        _charge_own_waits(charger, sequence, last_ns, end_ns)
    else:
        _charge_own_waits(charger, sequence, begin_ns, end_ns)


def _charge_own_waits(
    charger: Charger, sequence: SequenceTimeline, begin_ns: int, end_ns: int
) -> None:
    at_ns = begin_ns
    for wait in sequence.waits:
        start_ns, stop_ns = max(at_ns, wait.start_ns), min(end_ns, wait.end_ns)
        if start_ns >= stop_ns:
            continue
        _charge_without_reason(charger, sequence, at_ns, start_ns)
        state = _state(sequence, start_ns)
        own = _OWN_CAUSES.get(wait.reason)
        if own is not None:
            charger.charge(state, wait.reason.value, own, start_ns, stop_ns)
        else:
            charger.charge_steps(state, _reason(wait), start_ns, stop_ns)
        at_ns = stop_ns
    _charge_without_reason(charger, sequence, at_ns, end_ns)


def _charge_without_reason(
    charger: Charger, sequence: SequenceTimeline, begin_ns: int, end_ns: int
) -> None:
    """Charge time without a recorded reason: before its first step a sequence waits for the next
    plan, which is made when the running step ends; later only turn-arounds of the loop are left."""
    scheduled_ns = end_ns if sequence.scheduled_ns is None else sequence.scheduled_ns
    middle_ns = max(begin_ns, min(scheduled_ns, end_ns))
    charger.charge_steps(State.WAIT, NEXT_STEP, begin_ns, middle_ns)
    state = _state(sequence, middle_ns)
    if state is State.PREEMPTED:
        charger.charge_steps(state, NEXT_STEP, middle_ns, end_ns)
    else:
        charger.charge_unexplained(State.RUN, "", middle_ns, end_ns)


def _state(sequence: SequenceTimeline, at_ns: int) -> State:
    if any(gap.start_ns <= at_ns < gap.end_ns for gap in sequence.preempted):
        return State.PREEMPTED
    if sequence.scheduled_ns is None or at_ns < sequence.scheduled_ns:
        return State.WAIT
    return State.SKIP


def _reason(wait: WaitSpan) -> str:
    """The reason as text; behind the head of the queue, with the reason that blocks the head."""
    if wait.reason is WaitReason.HEAD_OF_LINE and wait.head_reason is not None:
        return f"{wait.reason.value}/{wait.head_reason.value}"
    return wait.reason.value
