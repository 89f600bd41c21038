"""The engine process says what its prefix cache holds, once it is asked."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from lab.fleet.engine import COST, IDENTITY, LIMITS, TimedDevice
from service.engine.inbox import Inbox, Submit
from service.engine.kv.prefix import chain_digests, chain_root, namespace_of
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams, StepOutcome
from service.engine.scheduler import Scheduler
from service.fleet.routing.anchors import STRIDE_BLOCKS
from service.process import frames
from service.process.engine_main import EngineServer
from service.process.gateway_connection import GatewayConnection, GatewayGone
from service.process.profiling import Profiles
from telemetry.facts.clock import ManualClock
from telemetry.facts.framing import Unframer
from telemetry.facts.recorder import Lane

PROMPT = list(range(200))


class EndsAfter(TimedDevice):
    """Its gateway is gone after so many steps."""

    steps = 3

    def collect(self) -> StepOutcome:
        self.steps -= 1
        if self.steps < 0:
            raise GatewayGone
        return super().collect()


def said(*first: frames.ToEngine) -> list[frames.PrefixesHeld]:
    """What an engine that computes `PROMPT` says, after these messages."""
    clock, inbox, lane = ManualClock(), Inbox(), Lane()
    device = EndsAfter(clock, COST, LIMITS)
    device.lengths[1] = 50
    loop = EngineLoop(Scheduler(LIMITS), device, inbox, lane, clock)
    ours, theirs = socket.socketpair()
    submit = Submit(
        seq_id=1, prompt=PROMPT, max_tokens=50, sampling=SamplingParams(temperature=0.0)
    )
    theirs.sendall(b"".join(frames.encode(one) for one in (*first, submit)))
    gateway, none = GatewayConnection(ours), cast(Any, None)  # no grammars, no profiles
    profiles = Profiles(loop, none, lane, clock, gateway.send)
    with contextlib.suppress(GatewayGone):
        EngineServer(gateway, inbox, loop, lane, clock, none, profiles).serve()
    ours.close()
    data = b"".join(iter(lambda: theirs.recv(1 << 16), b""))
    theirs.close()
    messages = [frames.to_gateway_decoder.decode(one) for one in Unframer().feed(data)]
    return [one for one in messages if isinstance(one, frames.PrefixesHeld)]


def test_each_fourth_block_of_a_prompt_is_told_after_the_step_that_filled_it() -> None:
    digests: list[bytes] = []
    chain_digests(digests, chain_root(IDENTITY, namespace_of("", ""), 0), PROMPT, 16)
    told = said(frames.WatchPrefixes(STRIDE_BLOCKS))

    assert told[0].whole
    assert [one for news in told for one in news.added] == digests[
        STRIDE_BLOCKS - 1 :: STRIDE_BLOCKS
    ]


def test_many_prefixes_are_told_in_pieces_one_in_an_iteration_also_of_an_idle_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that no step waits for all of a large cache."""
    monkeypatch.setattr("service.engine.kv.held_prefixes.MOST_DIGESTS", 1)
    clock, inbox, lane = ManualClock(), Inbox(), Lane()
    device = TimedDevice(clock, COST, LIMITS)
    device.lengths[1] = 1
    loop = EngineLoop(Scheduler(LIMITS), device, inbox, lane, clock)
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    submit = Submit(seq_id=1, prompt=PROMPT, max_tokens=1, sampling=SamplingParams(temperature=0.0))
    watch = frames.WatchPrefixes(STRIDE_BLOCKS)
    theirs.sendall(frames.encode(watch) + frames.encode(submit))
    gateway, none = GatewayConnection(ours), cast(Any, None)
    profiles = Profiles(loop, none, lane, clock, gateway.send)
    server = EngineServer(gateway, inbox, loop, lane, clock, none, profiles)
    turns, said_in = 0, list[int]()
    check_idle = loop.check_idle

    def counted() -> None:
        nonlocal turns
        turns += 1
        check_idle()

    monkeypatch.setattr(loop, "check_idle", counted)
    send = gateway.send

    def noted(message: frames.ToGateway) -> None:
        if isinstance(message, frames.PrefixesHeld):
            said_in.append(turns)
        send(message)

    monkeypatch.setattr(gateway, "send", noted)

    def serve() -> None:
        with contextlib.suppress(GatewayGone):
            server.serve()

    added: list[bytes] = []
    with ThreadPoolExecutor(1) as threads, theirs:
        served, unframer = threads.submit(serve), Unframer()
        while len(added) < len(PROMPT) // 16 // STRIDE_BLOCKS:
            for one in unframer.feed(theirs.recv(1 << 16)):
                message = frames.to_gateway_decoder.decode(one)
                if isinstance(message, frames.PrefixesHeld):
                    added += message.added
    served.result(10)
    ours.close()
    assert len(set(said_in)) == len(said_in)


def test_an_engine_that_was_not_asked_says_nothing() -> None:
    assert not said()
