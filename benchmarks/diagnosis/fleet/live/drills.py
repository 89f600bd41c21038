"""What goes wrong in a drill, from outside."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.diagnosis.fleet.live.clients import Clients
from benchmarks.diagnosis.fleet.live.clock import JumpingClock
from benchmarks.diagnosis.fleet.live.processes import Fleet

CULPRIT = "second"


@dataclass(frozen=True)
class Scene:
    """What a drill may act on, and until when."""

    fleet: Fleet
    clients: Clients
    clock: JumpingClock | None
    stop: threading.Event

    def pause(self, seconds: float) -> bool:
        """False when it is over."""
        return not self.stop.wait(seconds)


@dataclass(frozen=True)
class Drill:
    """`act` returns when the scene's time is over, with everything as it was. `symptom` empty:
    nothing is wrong."""

    symptom: str
    what: str
    act: Callable[[Scene], None]


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


DRILLS: dict[str, Drill] = {
    "nothing": Drill("", "nothing, as long as a drill", _nothing),
    "stopped": Drill("replica_slow", "SIGSTOP for 200 ms of each 220 ms", _stopped_again_and_again),
    "flushed": Drill("affinity_lost", "its cache is flushed every 0.7 s", _flushed),
    "jumps": Drill("clock_unbounded", "its machine's clock jumps by 0.3 s every 3 s", _jumps),
    "late": Drill("signals_stale", "a proxy delays all that its node sends, up to 4 s", _late),
}
