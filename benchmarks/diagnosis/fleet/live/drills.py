"""What goes wrong in a drill, from outside."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.diagnosis.fleet.live.clients import Asked, Clients
from benchmarks.diagnosis.fleet.live.clock import JumpingClock
from benchmarks.diagnosis.fleet.live.processes import Fleet

CULPRIT = "second"
ALWAYS = "split_not_worth_it"
"""True all the time where every prompt is sent to another engine that shares the cores."""


@dataclass(frozen=True)
class Scene:
    """What a drill may act on, and until when."""

    fleet: Fleet
    clock: JumpingClock | None
    stop: threading.Event

    def pause(self, seconds: float) -> bool:
        """False when it is over."""
        return not self.stop.wait(seconds)

    def more(self, number: int, asked: Asked) -> None:
        """So many more clients until then."""
        with Clients(self.fleet.gateway.url, self.fleet.model, number, 2, asked):
            self.stop.wait()


@dataclass(frozen=True)
class Drill:
    """`act` returns when the scene's time is over, with everything as it was. `symptom` empty:
    nothing is wrong. `culprit` empty: no engine is at fault."""

    symptom: str
    what: str
    act: Callable[[Scene], None]
    culprit: str = ""


def _nothing(scene: Scene) -> None:
    scene.stop.wait()


def _stopped_again_and_again(scene: Scene) -> None:
    pid = scene.fleet.nodes[CULPRIT].engine_pid
    try:
        while scene.pause(0.02):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)


def _flushed(scene: Scene) -> None:
    while scene.pause(0.7):
        scene.fleet.nodes[CULPRIT].get("/debug/cache/flush", "POST")


def _late(scene: Scene) -> None:
    """The link becomes slower by a fifth of each second, up to 4 s: never silent."""
    link, began_s = scene.fleet.links[CULPRIT], time.monotonic()
    while scene.pause(0.02):
        link.delay_s = min(4.0, 0.25 * (time.monotonic() - began_s))
    link.delay_s = 0.0


def _jumps(scene: Scene) -> None:
    assert scene.clock is not None
    while scene.pause(3.0):
        scene.clock.jump(300_000_000)


def _narrow(scene: Scene) -> None:
    link = scene.fleet.links["kv"]
    link.bytes_per_s = 5_000_000.0
    scene.stop.wait()
    link.bytes_per_s = None


def _long_prompts(scene: Scene) -> None:
    scene.more(12, Asked(output_tokens=2, own_words=330, pause_s=0.1))


def _long_answers(scene: Scene) -> None:
    scene.more(16, Asked(output_tokens=300, own_words=20, pause_s=0.1))


ROUTED: dict[str, Drill] = {
    "nothing": Drill("", "nothing, as long as a drill", _nothing),
    "stopped": Drill(
        "replica_slow", "SIGSTOP for 200 ms of each 220 ms", _stopped_again_and_again, CULPRIT
    ),
    "flushed": Drill("affinity_lost", "its cache is flushed every 0.7 s", _flushed, CULPRIT),
    "jumps": Drill(
        "clock_unbounded", "its machine's clock jumps by 0.3 s every 3 s", _jumps, CULPRIT
    ),
    "late": Drill(
        "signals_stale", "a proxy delays all that its node sends, up to 4 s", _late, CULPRIT
    ),
}
"""Drills with three engines and a gateway."""
APART: dict[str, Drill] = {
    "always": Drill(ALWAYS, "every prompt goes to an engine on the same two cores", _nothing),
    "narrow": Drill("transfer_slow", "a proxy passes 5 MB of KV a second", _narrow),
    "long prompts": Drill(
        "prefill_bound", "twelve more clients with prompts of 1,500 tokens", _long_prompts
    ),
    "long answers": Drill(
        "decode_bound", "sixteen more clients with answers of 300 tokens", _long_answers
    ),
}
"""Drills with an engine that computes prompts, and one that decodes them."""
