"""Steps that fail, engines that do not start, and records that are not whole."""

from __future__ import annotations

from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.life import START_NS, Death, Hang, Life, Outage, Span
from lab.twins.losses import Loss, Stops
from lab.twins.physics import MS, SECOND
from lab.twins.traffic import Setting
from service.engine.inbox import SetRecording
from service.engine.plan import Plan
from telemetry.facts.engine_records import EngineStarted, RecordingSet, StepRecorded
from telemetry.facts.reasons import HangKind, StepFailure
from telemetry.facts.records import Fact, fact_ns

_CUT_FILE = (
    "/models/virtual/model.safetensors is not a whole safetensors file "
    "(header says 269060552 bytes, file has 201326592)"
)
_LOST_DISK = "OSError: [Errno 5] Input/output error: '/models/virtual/model.safetensors'"


def _large_steps_fail(life: Life, span: Span, draw: Random) -> None:
    """What a step with many prompt tokens needs for a moment is not there any more."""
    most = draw.randint(88, 112)

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        tokens = sum(len(chunk.tokens) for chunk in plan.prefills)
        return StepFailure.OUT_OF_MEMORY if tokens > most and span.has(now_ns) else None

    life.fails = fails


def _memory_grows(life: Life, span: Span, draw: Random) -> None:
    """The engine's memory grows until steps fail and the kernel ends it; a new one is started."""
    killed_ns = span.begin_ns + int(draw.uniform(0.45, 0.6) * span.length_ns)
    failing_ns = killed_ns - int(draw.uniform(3, 5) * SECOND)
    back_ns = killed_ns + int(draw.uniform(2.5, 4.0) * SECOND)
    chances = Random(draw.getrandbits(32))
    usual, most = 900 << 20, int(draw.uniform(2.5, 3.5) * (1 << 30))

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        is_failing = failing_ns <= now_ns < killed_ns and chances.random() < 0.04
        return StepFailure.OUT_OF_MEMORY if is_failing else None

    def resident(at_ns: int) -> int:
        if not span.begin_ns <= at_ns < killed_ns:
            return usual
        return usual + (most - usual) * (at_ns - span.begin_ns) // (killed_ns - span.begin_ns)

    life.fails, life.resident = fails, resident
    life.outage = Outage(killed_ns, back_ns, (Death(killed_ns, -9, "ended by signal 9"),))
    life.struck = Span(span.begin_ns, back_ns)


OUT_OF_MEMORY: Mechanisms = {
    "activations": Fault(strike=_large_steps_fail),
    "growth": Fault(strike=_memory_grows),
}


def _falls_silent(life: Life, begin_ns: int, end_ns: int, draw: Random, kind: HangKind) -> None:
    """The engine's process lives until `end_ns` and does nothing."""
    seen_ns = begin_ns + int(draw.uniform(2.0, 2.5) * SECOND)
    life.thieves.append(Stops([(begin_ns, end_ns - begin_ns)], Loss.STOPPED))
    life.hang = Hang(begin_ns, seen_ns, end_ns, kind, recovers=kind is HangKind.STOPPED)
    life.struck = Span(begin_ns, end_ns)


def _stopped(life: Life, span: Span, draw: Random) -> None:
    """Somebody stops it, and lets it go on some seconds later."""
    end_ns = span.begin_ns + int(draw.uniform(6, 14) * SECOND)
    _falls_silent(life, span.begin_ns, end_ns, draw, HangKind.STOPPED)


def _replaced(life: Life, span: Span, draw: Random) -> None:
    """A call does not return, and holds the interpreter; at its deadline the engine is ended."""
    deadline_s = draw.randint(8, 12)
    killed_ns = span.begin_ns + deadline_s * SECOND
    back_ns = killed_ns + int(draw.uniform(2.5, 4.0) * SECOND)
    _falls_silent(life, span.begin_ns, killed_ns, draw, HangKind.SILENT)
    said = f"did not respond for {deadline_s} s and was ended"
    life.outage = Outage(killed_ns, back_ns, (Death(killed_ns, -9, said),))
    life.struck = Span(span.begin_ns, back_ns)


ENGINE_HUNG: Mechanisms = {
    "stopped": Fault(strike=_stopped),
    "replaced": Fault(strike=_replaced),
}


def _kernels_fail(life: Life, span: Span, draw: Random) -> None:
    """Now and then an operation is refused by the library that is to compute it."""
    chances, share = Random(draw.getrandbits(32)), draw.uniform(0.01, 0.02)

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        is_failing = span.has(now_ns) and chances.random() < share
        return StepFailure.KERNEL_ERROR if is_failing else None

    life.fails = fails


def _rank_lost(life: Life, span: Span, draw: Random) -> None:
    """A process that computes a part of the model is killed; all of the engine starts anew."""
    back_ns = span.begin_ns + int(draw.uniform(4.0, 6.0) * SECOND)
    said = "RankFailed: rank 1 of 2 was ended by signal 9"
    death = Death(span.begin_ns, 1, said, StepFailure.RANK_LOST)
    life.outage = Outage(span.begin_ns, back_ns, (death,))
    life.struck = Span(span.begin_ns, back_ns)


def _inputs_fail(life: Life, span: Span, draw: Random) -> None:
    """Some prompts name what the model does not have, and the step that computes them fails."""
    which = draw.randrange(20)

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        is_failing = span.has(now_ns) and any(one.seq_id % 20 == which for one in plan.prefills)
        return StepFailure.BAD_INPUT if is_failing else None

    life.fails = fails


STEP_FAILURE: Mechanisms = {
    "kernel": Fault(strike=_kernels_fail),
    "rank": Fault(strike=_rank_lost),
    "input": Fault(strike=_inputs_fail),
}


def _never_starts(life: Life, span: Span, draw: Random) -> None:
    """The first engine cannot read its model; the gateway waits for it and ends."""
    died_ns = START_NS + int(draw.uniform(2, 5) * SECOND)
    life.outage = Outage(START_NS, None, (Death(died_ns, 2, _CUT_FILE),))
    life.span = life.struck = Span(START_NS, died_ns)
    life.asks = [ask for ask in life.coming(life.span) if draw.random() < 0.2]


def _never_comes_back(life: Life, span: Span, draw: Random) -> None:
    """An engine dies, and none that is to replace it gets through loading."""
    deaths = [Death(span.begin_ns, -7, "ended by signal 7")]
    at_ns, pause_s = span.begin_ns, 0.25
    while at_ns < life.span.end_ns:
        at_ns += int((pause_s + draw.uniform(1.5, 2.5)) * SECOND)
        deaths.append(Death(at_ns, 1, _LOST_DISK))
        pause_s = min(2 * pause_s, 30.0)
    known = tuple(death for death in deaths if death.at_ns < life.span.end_ns)
    life.outage = Outage(span.begin_ns, None, known)


LOAD_FAILURE: Mechanisms = {
    "start": Fault(strike=_never_starts),
    "restart": Fault(strike=_never_comes_back),
}


def _steps_lost(life: Life, span: Span, draw: Random) -> None:
    """30 % of the steps' records do not arrive."""
    chances = Random(draw.getrandbits(32))

    def loses(fact: Fact) -> bool:
        lost = isinstance(fact, StepRecorded) and chances.random() < 0.3
        return lost and span.has(fact_ns(fact))

    life.loses = loses


def _quiet(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.25, 0.35)


def _switched_off(life: Life, span: Span, draw: Random) -> None:
    """Recording is switched off for a while, each time when nobody is served."""
    switches = [(span.begin_ns, False), (span.end_ns, True)]
    for at_ns, enabled in switches:
        life.commands.append((at_ns, SetRecording(enabled)))
        life.asks = [a for a in life.asks if not at_ns - 3 * SECOND <= a.at_ns < at_ns + 100 * MS]

    def loses(fact: Fact) -> bool:
        return span.has(fact_ns(fact)) and not isinstance(fact, RecordingSet | EngineStarted)

    life.loses = loses


def _bursts_lost(life: Life, span: Span, draw: Random) -> None:
    """A lane overflows again and again: everything is lost for some tenths of a second."""
    gaps: list[Span] = []
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        gaps.append(Span(at_ns, at_ns + int(draw.uniform(200, 600) * MS)))
        at_ns += int(draw.uniform(1.2, 2.0) * SECOND)

    def loses(fact: Fact) -> bool:
        at_ns = fact_ns(fact)
        return span.has(at_ns) and any(gap.has(at_ns) for gap in gaps)

    life.loses = loses


DEGRADED: Mechanisms = {
    "steps_lost": Fault(strike=_steps_lost),
    "switched_off": Fault(prepare=_quiet, strike=_switched_off),
    "bursts_lost": Fault(strike=_bursts_lost),
}
