"""A simulated fleet that records all that a gateway does, requests included."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lab.fleet.engine import LIMITS, SimEngine
from lab.fleet.link import Link
from lab.fleet.outcome import Asked
from lab.fleet.traffic import Session, Trace, sessions
from lab.fleet.twins.faults import TwinFaults
from lab.fleet.twins.recorded_world import RecordedWorld
from lab.fleet.world import FleetScenario
from service.engine.limits_record import record_of
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.engine_start import ModelShape
from telemetry.facts.fleet.routing_records import EngineJoined, RoutingPolicy
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)

SECOND = 1_000_000_000
_SHAPE = ModelShape(
    layers=30, hidden=576, q_size=576, kv_size=192, ffn=1536, vocab=49152, weight_bytes=2.0,
    cell_bytes=23_040,
)  # fmt: skip


class ServedFleet(RecordedWorld):
    """Clients' requests are facts too; engines know no retry, as in production."""

    sends_again = False

    def _begin(self, request_id: str, asked: Asked) -> None:
        now_ns = self.now_ns
        self.gateway_facts += [
            RequestAccepted(
                request_id, now_ns, f"{len(self.asked):032x}", None, None, None,
                "/v1/completions", "text_completion", asked.session.tenant, "chat",
            ),
            RequestParsed(request_id, now_ns, "m", True, 1, asked.max_tokens, 0.0, 1.0, 0, None),
            RequestTokenized(request_id, now_ns, len(asked.prompt)),
        ]  # fmt: skip
        self._asking_id = request_id
        super()._begin(request_id, asked)

    def _sent(self, engine: SimEngine, seq_id: int) -> None:
        self.gateway_facts.append(SequenceSubmitted(self._asking_id, self.now_ns, seq_id, 0))
        super()._sent(engine, seq_id)

    def _close(self, request_id: str, asked: Asked, engine: str | None, reason: Any) -> None:
        super()._close(request_id, asked, engine, reason)
        is_end = isinstance(reason, EndReason)
        self.gateway_facts.append(
            RequestEnded(
                request_id, self.now_ns, reason if is_end else EndReason.NOT_READY, 200, None,
                asked.tokens, asked.first_ns, self.now_ns, 0, 0, None,
            )
        )  # fmt: skip

    def recorded(self) -> list[Fact]:
        """Run it; what its gateway recorded, with what engines say of their start."""
        self.run()
        started = EngineStarted(
            at_ns=0, pid=0, model="m", backend="simulated", dtype="none", pipeline_depth=1,
            shape=_SHAPE, **record_of(self.scenario.limits),
        )  # fmt: skip
        return [
            replace(fact, started=started) if isinstance(fact, EngineJoined) else fact
            for fact in self.gateway_facts
        ]


def fleet(
    trace: Trace = Trace.SHAREGPT,
    seed: int = 1,
    engines: int = 3,
    rate_per_s: float = 0.7,
    span_s: float = 30.0,
    policy: RoutingPolicy = RoutingPolicy.LEAST_FINISH,
    made_for: int | None = None,
    faults: TwinFaults | None = None,
    **changes: Any,
) -> ServedFleet:
    """`made_for` engines are what the traffic was drawn for."""
    asked: list[Session] = sessions(trace, seed, made_for or engines, rate_per_s, span_s)
    scenario = FleetScenario(
        seed=seed,
        engines=engines,
        sessions=tuple(asked),
        settings=RoutingSettings(policy=policy, seed=seed),
        link=Link(),
        limits=LIMITS,
        faults=faults or TwinFaults(),
        **changes,
    )
    return ServedFleet(scenario, int((span_s + 5) * SECOND))
