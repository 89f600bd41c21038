"""The garbage collector: its settings, and a fact for each of its longer pauses."""

from __future__ import annotations

import gc

from telemetry.facts.clock import Clock
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.recorder import Lane

LEAST_PAUSE_NS = 500_000

# A young collection looks at as many objects as have come since the last one, about 0.1 us
# each, so this many keep it at half a millisecond; and few survive, because facts are not
# tracked by the collector at all.
_THRESHOLDS = (5_000, 20, 50)


def settle_collector() -> None:
    """Call it after loading. Objects of the start are frozen: they stay until the process ends, and
    torch alone leaves half a million of them to scan. Later collections are rare."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


class GcWatch:
    """Writes a HostPaused for each collection that took at least `least_ns`.

    A collection runs on whichever thread allocated last and holds the interpreter, so all
    threads stand still, and two never overlap. The lane must have no other writer.
    """

    def __init__(
        self,
        process: HostProcess,
        lane: Lane,
        clock: Clock,
        least_ns: int = LEAST_PAUSE_NS,
        number: int = 0,
    ) -> None:
        """`number` is that of one of several gateway processes."""
        self._process = process
        self._lane = lane
        self._clock = clock
        self._least_ns = least_ns
        self._number = number
        self._begin_ns: int | None = None

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def remove(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begin_ns = self._clock.now_ns()
            return
        begin_ns, self._begin_ns = self._begin_ns, None
        if begin_ns is None:  # installed during a collection
            return
        end_ns = self._clock.now_ns()
        if end_ns - begin_ns < self._least_ns:
            return
        self._lane.append(
            HostPaused(
                at_ns=end_ns,
                begin_ns=begin_ns,
                end_ns=end_ns,
                process=self._process,
                cause=PauseCause.GC,
                detail=f"generation {info['generation']}, {info['collected']} collected",
                gateway=self._number,
            )
        )
