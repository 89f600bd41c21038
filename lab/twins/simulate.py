"""Simulates a run in virtual time: gateway, engine, clients, delivery and machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from lab.simulation.sim_adapters import SimAdapters
from lab.simulation.virtual_engine import VirtualEngine
from lab.twins.clients import Clients
from lab.twins.delivery import end_of
from lab.twins.device import Needs, PacedScheduler, TwinDevice
from lab.twins.gateway import EventLoop, SimulatedRequest, ingest_facts, ingest_requests
from lab.twins.host import host_facts
from lab.twins.losses import Loss, ProcessStops
from lab.twins.physics import MS, Machine
from lab.twins.simulated_run import START_NS, Hang, SimulatedRun
from service.engine.limits_record import record_of
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.reasons import EndReason, HangKind, StackSource
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, Fact, fact_ns

_PID = 4242


def simulate(run: SimulatedRun) -> list[Fact]:
    """All facts of a run, in the order of time."""
    loop = EventLoop()
    requests = ingest_requests(run, loop)
    for request in requests:
        if _is_refused(run, request):
            _reject(request)
    engine: list[Fact] = []
    ran_ns: Counter[int] = Counter()
    for begin_ns, end_ns in _engine_spans(run):
        served = [one for one in requests if _is_served(one, begin_ns, end_ns)]
        engine += _serve(run, served, loop, ran_ns, begin_ns, end_ns)
    for request in requests:
        if request.submitted_ns is not None and not request.is_over:
            _reject(request)
    for source in run.cpu_contention:
        for loss in source.losses:
            if loss.kind is Loss.THROTTLED:  # both are in the control group
                loop.add_off_cpu(loss.begin_ns, loss.end_ns)
    draw = Random(f"{run.seed}/delivery")
    ended = [end_of(request, loop, draw) for request in requests]
    gateway = [fact for request in requests for fact in ingest_facts(request)]
    host = host_facts(run, ran_ns, ended, loop)
    if run.gpus is not None:
        host += run.gpus.facts(START_NS, run.span.end_ns, Random(f"{run.seed}/gpus"))
    facts = sorted(
        [*gateway, *_hang_facts(run, requests), *_death_facts(run), *engine, *ended, *host],
        key=fact_ns,
    )
    drops_fact = run.drops_fact
    return facts if drops_fact is None else [fact for fact in facts if not drops_fact(fact)]


def _engine_spans(run: SimulatedRun) -> list[tuple[int, int | None]]:
    """Begin and end of each engine process that serves; end None: to the last request."""
    outage = run.outage
    if outage is None:
        return [(START_NS, None)]
    found: list[tuple[int, int | None]] = []
    if outage.begin_ns > START_NS:
        found.append((START_NS, outage.begin_ns))
    if outage.end_ns is not None:
        found.append((outage.end_ns, None))
    return found


def _is_served(request: SimulatedRequest, begin_ns: int, end_ns: int | None) -> bool:
    at_ns = request.submitted_ns
    return at_ns is not None and begin_ns <= at_ns and (end_ns is None or at_ns < end_ns)


def _is_refused(run: SimulatedRun, request: SimulatedRequest) -> bool:
    """Whether the gateway refuses a request because it has found the engine hung."""
    at_ns = request.submitted_ns
    return run.hang is not None and at_ns is not None and run.hang.refuses(at_ns)


def _reject(request: SimulatedRequest) -> None:
    """End a request with NOT_READY before its prompt is encoded: no engine serves."""
    request.tokenized_ns = request.submitted_ns = None
    request.seq_ids = []
    request.finish(EndReason.NOT_READY, request.parsed_ns)


def _serve(
    run: SimulatedRun,
    requests: Sequence[SimulatedRequest],
    loop: EventLoop,
    ran_ns: Counter[int],
    begin_ns: int,
    end_ns: int | None,
) -> list[Fact]:
    """Facts of one engine process, from its start to its death or until it has no work left."""
    setting, clock = run.setting, ManualClock(begin_ns)
    limits, physics = setting.limits, setting.physics
    machine = Machine(clock, run.cpu_contention, run.slowdowns, ran_ns)

    def between_iterations_ns() -> int:
        machine.work(physics.gap_ns)
        return 0

    needs: dict[int, Needs] = {}
    draw = Random(f"{run.seed}/device/{begin_ns}")
    device = TwinDevice(limits, physics, machine, needs, draw, run.fails, run.gpus)
    adapters = SimAdapters(
        clock, {one.name: one for one in setting.adapters}, lambda *sent: engine.send_at(*sent)
    )
    engine = VirtualEngine(
        PacedScheduler(limits, machine, physics),
        device,
        clock,
        between_iterations_ns,
        adapters=adapters,
    )
    for one in setting.adapters:
        engine.send_at(begin_ns, one.load)
    clients = Clients(engine, requests, loop, setting.stream_buffer_tokens, needs, end_ns)
    for at_ns, command in run.commands:
        if at_ns >= begin_ns and (end_ns is None or at_ns < end_ns):
            engine.send_at(at_ns, command)
    for source in run.cpu_contention:
        if isinstance(source, ProcessStops):
            for at_ns in source.due_ns:
                engine.at(at_ns, machine.wait_while_stopped)
    facts: list[Fact] = [_started(run, begin_ns), *engine.run(clients.take, end_ns)]
    clients.close()
    return facts if end_ns is None else [fact for fact in facts if fact_ns(fact) <= end_ns]


def _started(run: SimulatedRun, at_ns: int) -> EngineStarted:
    return EngineStarted(
        at_ns=at_ns,
        pid=_PID,
        model="virtual",
        backend="virtual",
        dtype="none",
        pipeline_depth=1,
        **record_of(run.setting.limits),
    )


_STACKS = ("Current thread 0x1 (most recent call first):", '  File "driver.py", line 7 in wait')


def _hang_facts(run: SimulatedRun, requests: Sequence[SimulatedRequest]) -> list[Fact]:
    """Facts of a hang, as the gateway records it 60 ms after it asked for the stacks."""
    hang = run.hang
    if hang is None:
        return []
    has_handler = hang.kind is not HangKind.STOPPED
    facts: list[Fact] = [
        EngineHung(
            at_ns=hang.detected_ns + 60 * MS,
            since_ns=hang.begin_ns,
            kind=hang.kind,
            sequences=sum(len(one.seq_ids) for one in requests if _is_in_engine(one, hang)),
            engine_pid=_PID,
            process_state="S" if has_handler else "T",
            stacks_source=StackSource.FAULTHANDLER if has_handler else StackSource.KERNEL,
            stacks=_STACKS if has_handler else (f"Thread {_PID} (python): state T",),
        )
    ]
    if hang.recovers:
        facts.append(EngineRecovered(hang.end_ns, hang.begin_ns))
    return facts


def _is_in_engine(request: SimulatedRequest, hang: Hang) -> bool:
    """Whether the engine had the request when the hang was found."""
    at_ns, has_ended = request.submitted_ns, request.is_over and request.ended_ns < hang.detected_ns
    return at_ns is not None and at_ns < hang.detected_ns and not has_ended


def _death_facts(run: SimulatedRun) -> list[Fact]:
    if run.outage is None:
        return []
    return [
        EngineDied(death.at_ns, death.exit_code, death.detail, number, death.failure)
        for number, death in enumerate(run.outage.deaths)
    ]
