"""Lives a life: the engine in virtual time between its gateway's two halves, on its machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from lab.simulation.virtual_engine import VirtualEngine
from lab.twins.clients import Clients
from lab.twins.delivery import end_of
from lab.twins.device import Needs, PacedScheduler, TwinDevice
from lab.twins.gateway import EventLoop, Exchange, facts_on_the_way_in, take_in
from lab.twins.host import host_facts
from lab.twins.life import START_NS, Hang, Life
from lab.twins.losses import Loss, Stops
from lab.twins.physics import MS, Machine
from service.engine.limits_record import record_of
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.reasons import EndReason, HangKind, StackSource
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, Fact, fact_ns

_PID = 4242


def live(life: Life) -> list[Fact]:
    """All facts of a life, in the order of time."""
    loop = EventLoop()
    exchanges = take_in(life, loop)
    for exchange in exchanges:
        if _is_refused(life, exchange):
            _turn_away(exchange)
    engine: list[Fact] = []
    ran_ns: Counter[int] = Counter()
    for begin_ns, end_ns in _lives(life):
        mine = [one for one in exchanges if _is_served(one, begin_ns, end_ns)]
        engine += _serve(life, mine, loop, ran_ns, begin_ns, end_ns)
    for exchange in exchanges:
        if exchange.submitted_ns is not None and not exchange.is_over:
            _turn_away(exchange)
    for thief in life.thieves:
        for loss in thief.losses:
            if loss.kind is Loss.THROTTLED:  # both are in the control group
                loop.take_away(loss.begin_ns, loss.end_ns)
    draw = Random(f"{life.seed}/delivery")
    ended = [end_of(exchange, loop, draw) for exchange in exchanges]
    gateway = [fact for exchange in exchanges for fact in facts_on_the_way_in(exchange)]
    host = host_facts(life, ran_ns, ended, loop)
    facts = sorted(
        [*gateway, *_hangs(life, exchanges), *_deaths(life), *engine, *ended, *host], key=fact_ns
    )
    loses = life.loses
    return facts if loses is None else [fact for fact in facts if not loses(fact)]


def _lives(life: Life) -> list[tuple[int, int | None]]:
    """Begin and end of each engine that serves; None: it outlives everybody."""
    outage = life.outage
    if outage is None:
        return [(START_NS, None)]
    found: list[tuple[int, int | None]] = []
    if outage.begin_ns > START_NS:
        found.append((START_NS, outage.begin_ns))
    if outage.end_ns is not None:
        found.append((outage.end_ns, None))
    return found


def _is_served(exchange: Exchange, begin_ns: int, end_ns: int | None) -> bool:
    at_ns = exchange.submitted_ns
    return at_ns is not None and begin_ns <= at_ns and (end_ns is None or at_ns < end_ns)


def _is_refused(life: Life, exchange: Exchange) -> bool:
    """By a gateway that has noticed that the engine does not respond."""
    at_ns = exchange.submitted_ns
    return life.hang is not None and at_ns is not None and life.hang.refuses(at_ns)


def _turn_away(exchange: Exchange) -> None:
    """Nobody is there to hand it to: found out before its prompt is encoded."""
    exchange.tokenized_ns = exchange.submitted_ns = None
    exchange.seq_ids = []
    exchange.finish(EndReason.NOT_READY, exchange.parsed_ns)


def _serve(
    life: Life,
    exchanges: Sequence[Exchange],
    loop: EventLoop,
    ran_ns: Counter[int],
    begin_ns: int,
    end_ns: int | None,
) -> list[Fact]:
    """One engine from its start to its death, or until nothing is left to do."""
    setting, clock = life.setting, ManualClock(begin_ns)
    limits, physics = setting.limits, setting.physics
    machine = Machine(clock, life.thieves, life.slowdowns, ran_ns)

    def rest_ns() -> int:
        machine.work(physics.gap_ns)
        return 0

    needs: dict[int, Needs] = {}
    draw = Random(f"{life.seed}/device/{begin_ns}")
    device = TwinDevice(limits, physics, machine, needs, draw, life.fails)
    engine = VirtualEngine(PacedScheduler(limits, machine, physics), device, clock, rest_ns)
    clients = Clients(engine, exchanges, loop, setting.stream_buffer_tokens, needs, end_ns)
    for at_ns, command in life.commands:
        if at_ns >= begin_ns and (end_ns is None or at_ns < end_ns):
            engine.send_at(at_ns, command)
    for thief in life.thieves:
        if isinstance(thief, Stops):
            for at_ns in thief.due_ns:
                engine.at(at_ns, machine.stand_still)
    facts: list[Fact] = [_started(life, begin_ns), *engine.run(clients.take, end_ns)]
    clients.close()
    return facts if end_ns is None else [fact for fact in facts if fact_ns(fact) <= end_ns]


def _started(life: Life, at_ns: int) -> EngineStarted:
    return EngineStarted(
        at_ns=at_ns,
        pid=_PID,
        model="virtual",
        backend="virtual",
        dtype="none",
        pipeline_depth=1,
        **record_of(life.setting.limits),
    )


_BY_ITSELF = ("Current thread 0x1 (most recent call first):", '  File "driver.py", line 7 in wait')


def _hangs(life: Life, exchanges: Sequence[Exchange]) -> list[Fact]:
    """As the gateway notes it, some milliseconds after it has asked where the threads are."""
    hang = life.hang
    if hang is None:
        return []
    has_handler = hang.kind is not HangKind.STOPPED
    facts: list[Fact] = [
        EngineHung(
            at_ns=hang.seen_ns + 60 * MS,
            since_ns=hang.begin_ns,
            kind=hang.kind,
            sequences=sum(len(one.seq_ids) for one in exchanges if _waits(one, hang)),
            engine_pid=_PID,
            process_state="S" if has_handler else "T",
            stacks_source=StackSource.FAULTHANDLER if has_handler else StackSource.KERNEL,
            stacks=_BY_ITSELF if has_handler else (f"Thread {_PID} (python): state T",),
        )
    ]
    if hang.recovers:
        facts.append(EngineRecovered(hang.end_ns, hang.begin_ns))
    return facts


def _waits(exchange: Exchange, hang: Hang) -> bool:
    """The engine had it when it was found to hang."""
    at_ns, over = exchange.submitted_ns, exchange.is_over and exchange.over_ns < hang.seen_ns
    return at_ns is not None and at_ns < hang.seen_ns and not over


def _deaths(life: Life) -> list[Fact]:
    if life.outage is None:
        return []
    return [
        EngineDied(death.at_ns, death.exit_code, death.detail, number, death.failure)
        for number, death in enumerate(life.outage.deaths)
    ]
