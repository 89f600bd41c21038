"""The engine process has grammars compiled for as long as their sequences live."""

from __future__ import annotations

import socket
from typing import Any, cast

from lab.fleet.engine import COST, LIMITS, TimedDevice
from service.engine.inbox import Cancel, Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import Grammar, GrammarKind, SamplingParams
from service.engine.scheduler import Scheduler
from service.process import frames
from service.process.engine_main import EngineServer
from service.process.gateway_connection import GatewayConnection
from service.process.profiling import Profiles
from telemetry.facts.clock import ManualClock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane


class Script:
    """A compiler that never has anything ready; what it is asked makes clients leave."""

    def __init__(self, client: socket.socket) -> None:
        self.heard: list[tuple[str, int]] = []
        self._client = client

    def send(self, *messages: frames.ToEngine) -> None:
        self._client.sendall(b"".join(frames.encode(one) for one in messages))

    def request(self, seq_id: int, grammar: Grammar) -> None:
        self.heard.append(("wanted", seq_id))
        left = Cancel(seq_id, EndReason.DISCONNECT)
        self.send(*([left, constrained(seq_id + 1)] if seq_id < 3 else [frames.Shutdown()]))

    def ended(self, seq_id: int) -> None:
        self.heard.append(("ended", seq_id))


def constrained(seq_id: int) -> Submit:
    return Submit(
        seq_id=seq_id,
        prompt=[1, 2, 3],
        max_tokens=5,
        sampling=SamplingParams(),
        grammar=Grammar(GrammarKind.REGEX, f"a{seq_id}"),
    )


def test_the_compiler_hears_of_clients_that_leave_while_their_grammar_is_compiled() -> None:
    """What nobody waits for is not built before what somebody waits for."""
    clock, inbox, lane = ManualClock(), Inbox(), Lane()
    loop = EngineLoop(Scheduler(LIMITS), TimedDevice(clock, COST, LIMITS), inbox, lane, clock)
    ours, theirs = socket.socketpair()
    gateway, script = GatewayConnection(ours), Script(theirs)
    profiles = Profiles(loop, cast(Any, None), lane, clock, gateway.send)
    script.send(constrained(1))
    EngineServer(gateway, inbox, loop, lane, clock, script, profiles).serve()
    ours.close()
    theirs.close()

    wanted = [seq_id for said, seq_id in script.heard if said == "wanted"]
    ended = [seq_id for said, seq_id in script.heard if said == "ended"]
    assert (wanted, ended) == ([1, 2, 3], [1, 2])
