"""Failures: steps that fail, engines that hang, die or do not start, and lost facts."""

from __future__ import annotations

from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.losses import Loss, ProcessStops
from lab.twins.physics import MS, SECOND
from lab.twins.simulated_run import START_NS, Death, Hang, Outage, SimulatedRun, Span
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


def _large_steps_fail(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Steps with many prompt tokens run out of memory."""
    most = draw.randint(88, 112)

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        tokens = sum(len(chunk.tokens) for chunk in plan.prefills)
        return StepFailure.OUT_OF_MEMORY if tokens > most and span.has(now_ns) else None

    run.fails = fails


def _memory_grows(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The engine's memory grows until steps fail and the kernel ends it; a new one is started."""
    killed_ns = span.begin_ns + int(draw.uniform(0.45, 0.6) * span.length_ns)
    failing_ns = killed_ns - int(draw.uniform(3, 5) * SECOND)
    back_ns = killed_ns + int(draw.uniform(2.5, 4.0) * SECOND)
    failures_draw = Random(draw.getrandbits(32))
    baseline, most = 900 << 20, int(draw.uniform(2.5, 3.5) * (1 << 30))

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        is_failing = failing_ns <= now_ns < killed_ns and failures_draw.random() < 0.04
        return StepFailure.OUT_OF_MEMORY if is_failing else None

    def resident_bytes(at_ns: int) -> int:
        if not span.begin_ns <= at_ns < killed_ns:
            return baseline
        return baseline + (most - baseline) * (at_ns - span.begin_ns) // (killed_ns - span.begin_ns)

    run.fails, run.resident_bytes = fails, resident_bytes
    run.outage = Outage(killed_ns, back_ns, (Death(killed_ns, -9, "ended by signal 9"),))
    run.injected = Span(span.begin_ns, back_ns)


OUT_OF_MEMORY: Mechanisms = {
    "activations": Fault(inject=_large_steps_fail),
    "growth": Fault(inject=_memory_grows),
}


def _stops_responding(
    run: SimulatedRun, begin_ns: int, end_ns: int, draw: Random, kind: HangKind
) -> None:
    """The engine process does nothing from `begin_ns` to `end_ns`."""
    detected_ns = begin_ns + int(draw.uniform(2.0, 2.5) * SECOND)
    run.cpu_contention.append(ProcessStops([(begin_ns, end_ns - begin_ns)], Loss.STOPPED))
    run.hang = Hang(begin_ns, detected_ns, end_ns, kind, recovers=kind is HangKind.STOPPED)
    run.injected = Span(begin_ns, end_ns)


def _stopped(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The process is stopped by a signal and continued 6 to 14 seconds later."""
    end_ns = span.begin_ns + int(draw.uniform(6, 14) * SECOND)
    _stops_responding(run, span.begin_ns, end_ns, draw, HangKind.STOPPED)


def _replaced(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A call keeps the interpreter lock and does not return; at a deadline the engine is ended."""
    deadline_s = draw.randint(8, 12)
    killed_ns = span.begin_ns + deadline_s * SECOND
    back_ns = killed_ns + int(draw.uniform(2.5, 4.0) * SECOND)
    _stops_responding(run, span.begin_ns, killed_ns, draw, HangKind.SILENT)
    detail = f"did not respond for {deadline_s} s and was ended"
    run.outage = Outage(killed_ns, back_ns, (Death(killed_ns, -9, detail),))
    run.injected = Span(span.begin_ns, back_ns)


ENGINE_HUNG: Mechanisms = {
    "stopped": Fault(inject=_stopped),
    "replaced": Fault(inject=_replaced),
}


def _kernels_fail(run: SimulatedRun, span: Span, draw: Random) -> None:
    """1 to 2 % of the steps fail in a kernel."""
    failures_draw, share = Random(draw.getrandbits(32)), draw.uniform(0.01, 0.02)

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        is_failing = span.has(now_ns) and failures_draw.random() < share
        return StepFailure.KERNEL_ERROR if is_failing else None

    run.fails = fails


def _rank_lost(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A process that computes a part of the model is killed; the whole engine is started again."""
    back_ns = span.begin_ns + int(draw.uniform(4.0, 6.0) * SECOND)
    detail = "RankFailed: rank 1 of 2 was ended by signal 9"
    death = Death(span.begin_ns, 1, detail, StepFailure.RANK_LOST)
    run.outage = Outage(span.begin_ns, back_ns, (death,))
    run.injected = Span(span.begin_ns, back_ns)


def _inputs_fail(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One prompt in 20 has an input that makes its step fail."""
    which = draw.randrange(20)

    def fails(plan: Plan, now_ns: int) -> StepFailure | None:
        is_failing = span.has(now_ns) and any(
            prefill.seq_id % 20 == which for prefill in plan.prefills
        )
        return StepFailure.BAD_INPUT if is_failing else None

    run.fails = fails


STEP_FAILURE: Mechanisms = {
    "kernel": Fault(inject=_kernels_fail),
    "rank": Fault(inject=_rank_lost),
    "input": Fault(inject=_inputs_fail),
}


def _never_starts(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The first engine cannot read its model; the gateway waits for it and ends."""
    died_ns = START_NS + int(draw.uniform(2, 5) * SECOND)
    run.outage = Outage(START_NS, None, (Death(died_ns, 2, _CUT_FILE),))
    run.span = run.injected = Span(START_NS, died_ns)
    run.specs = [spec for spec in run.arriving_in(run.span) if draw.random() < 0.2]


def _never_comes_back(run: SimulatedRun, span: Span, draw: Random) -> None:
    """An engine dies, and those that are to replace it die while they load."""
    deaths = [Death(span.begin_ns, -7, "ended by signal 7")]
    at_ns, pause_s = span.begin_ns, 0.25
    while at_ns < run.span.end_ns:
        at_ns += int((pause_s + draw.uniform(1.5, 2.5)) * SECOND)
        deaths.append(Death(at_ns, 1, _LOST_DISK))
        pause_s = min(2 * pause_s, 30.0)
    in_run = tuple(death for death in deaths if death.at_ns < run.span.end_ns)
    run.outage = Outage(span.begin_ns, None, in_run)


LOAD_FAILURE: Mechanisms = {
    "start": Fault(inject=_never_starts),
    "restart": Fault(inject=_never_comes_back),
}


def _steps_lost(run: SimulatedRun, span: Span, draw: Random) -> None:
    """30 % of the steps' records do not arrive."""
    failures_draw = Random(draw.getrandbits(32))

    def drops_fact(fact: Fact) -> bool:
        lost = isinstance(fact, StepRecorded) and failures_draw.random() < 0.3
        return lost and span.has(fact_ns(fact))

    run.drops_fact = drops_fact


def _quiet(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.25, 0.35)


def _switched_off(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Recording is switched off for a while, at times without requests."""
    switches = [(span.begin_ns, False), (span.end_ns, True)]
    for at_ns, enabled in switches:
        run.commands.append((at_ns, SetRecording(enabled)))
        run.specs = [
            spec for spec in run.specs if not at_ns - 3 * SECOND <= spec.at_ns < at_ns + 100 * MS
        ]

    def drops_fact(fact: Fact) -> bool:
        return span.has(fact_ns(fact)) and not isinstance(fact, RecordingSet | EngineStarted)

    run.drops_fact = drops_fact


def _bursts_lost(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A lane overflows again and again: everything is lost for some tenths of a second."""
    gaps: list[Span] = []
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        gaps.append(Span(at_ns, at_ns + int(draw.uniform(200, 600) * MS)))
        at_ns += int(draw.uniform(1.2, 2.0) * SECOND)

    def drops_fact(fact: Fact) -> bool:
        at_ns = fact_ns(fact)
        return span.has(at_ns) and any(gap.has(at_ns) for gap in gaps)

    run.drops_fact = drops_fact


DEGRADED: Mechanisms = {
    "steps_lost": Fault(inject=_steps_lost),
    "switched_off": Fault(prepare=_quiet, inject=_switched_off),
    "bursts_lost": Fault(inject=_bursts_lost),
}
