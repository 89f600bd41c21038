"""Watches the processes of an attached engine from outside: which is gone, and whether the core
responds. It only reads; no process is signalled or ended.

The adapter's sending thread gives a sign of life once a second. Only time in which the sidecar
itself was awake counts: when a look is late, because the machine was suspended, at most two
intervals are added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from service.attach.sidecar.hub import Hub
from service.attach.sidecar.streams import Stream
from telemetry.facts.reasons import HangKind
from telemetry.facts.records import EngineHung, EngineRecovered
from telemetry.journal.watchdog import process_state

log = logging.getLogger("phasescope.attach")

POLL_NS = 250_000_000
SILENT_NS = 3_000_000_000
STUCK_NS = 10_000_000_000
"""The engine's loop may take so long for one step."""
GONE_NS = 5_000_000_000
"""A process may take so long to connect again."""
_LATE_POLLS = 2
_STOPPED = ("T", "t")
_DEAD = (None, "Z", "X")


@dataclass(slots=True)
class Health:
    """The engine's health as the routes and metrics want it: how long it has not responded, None
    while it does; the time since its last sign of life; how often it has hung."""

    hung_ns: int | None = None
    heartbeat_age_ns: int | None = None
    hangs: int = 0


@dataclass(slots=True)
class _Gone:
    """A process whose connection was lost."""

    stream: Stream
    since_ns: int


class Watch:
    """To be called every POLL_NS with the connections that there are."""

    def __init__(self, hub: Hub, state_of: Callable[[int], str | None] = process_state) -> None:
        self.health = Health()
        self._hub, self._state_of = hub, state_of
        self._gone: list[_Gone] = []
        self._last_look_ns: int | None = None
        self._heard_ns = 0
        self._silent_ns = 0
        self._hung_since_ns: int | None = None
        self._turn_ns: int | None = None
        self._still_ns = 0

    def lost(self, stream: Stream, now_ns: int) -> None:
        """The connection of a process has ended."""
        self._gone.append(_Gone(stream, now_ns))

    def look(self, streams: Iterable[Stream], now_ns: int) -> None:
        live = list(streams)
        connected: set[object] = {stream.who for stream in live}
        core = next((stream for stream in live if stream.is_core), None)
        self._look_for_gone(connected, core is not None, now_ns)
        self._look_at_core(core, now_ns)

    def _look_for_gone(self, connected: set[object], has_core: bool, now_ns: int) -> None:
        for gone in list(self._gone):
            stream = gone.stream
            if stream.who in connected or (stream.is_core and has_core):
                self._gone.remove(gone)
                if stream.who not in connected:  # before anything that the next core has begun
                    self._end(stream, gone.since_ns, is_dead=True)
                continue
            is_dead = stream.pid is not None and self._state_of(stream.pid) in _DEAD
            if is_dead or now_ns - gone.since_ns >= GONE_NS:
                self._gone.remove(gone)
                self._end(stream, now_ns, is_dead or stream.pid is None)

    def _end(self, stream: Stream, at_ns: int, is_dead: bool) -> None:
        """The process has ended; or it runs, and sends nothing any more."""
        what = f"the {stream.hello.role.value.replace('_', ' ')} (process {stream.hello.pid})"
        log.warning("%s %s", what, "has ended" if is_dead else "is not observed any more")
        if not is_dead:
            self._hub.unobserved(stream, at_ns)
        elif not stream.is_core:
            self._hub.front_end_died(stream.who, at_ns)
        else:
            self._hub.engine_died(at_ns, f"{what} has ended")

    def _look_at_core(self, core: Stream | None, now_ns: int) -> None:
        last_ns, self._last_look_ns = self._last_look_ns, now_ns
        if core is None:
            self._silent_ns = self._still_ns = 0
            self._hung_since_ns = None
            self.health.hung_ns = self.health.heartbeat_age_ns = None
            return
        awake_ns = 0 if last_ns is None else min(now_ns - last_ns, _LATE_POLLS * POLL_NS)
        self._silent_ns += awake_ns
        self._still_ns += awake_ns
        if core.heard_ns != self._heard_ns:
            self._heard_ns, self._silent_ns = core.heard_ns, 0
        if core.turn_ns is None or core.turn_ns != self._turn_ns:
            self._turn_ns, self._still_ns = core.turn_ns, 0
        self.health.heartbeat_age_ns = self._silent_ns
        kind = self._hang_of(core)
        if kind is None:
            self._recover(now_ns)
        elif self._hung_since_ns is None:
            self._hang(core, kind, now_ns)
        if self._hung_since_ns is not None:
            self.health.hung_ns = now_ns - self._hung_since_ns

    def _hang_of(self, core: Stream) -> HangKind | None:
        """In which way the core does not respond although there is work; None: it responds. One
        that was idle when it stopped cannot tell of the requests that have come since."""
        if not self._hub.open:
            return None
        if self._silent_ns >= SILENT_NS:
            state = None if core.pid is None else self._state_of(core.pid)
            return HangKind.STOPPED if state in _STOPPED else HangKind.SILENT
        if not self._hub.sequences:
            return None
        return None if self._still_ns < STUCK_NS else HangKind.STUCK

    def _hang(self, core: Stream, kind: HangKind, now_ns: int) -> None:
        silent = kind is not HangKind.STUCK
        since_ns = core.heard_ns if silent or core.turn_ns is None else core.turn_ns
        self._hung_since_ns = since_ns
        self.health.hangs += 1
        log.warning(
            "the engine %s", "gives no sign of life" if silent else "does not come back from a step"
        )
        self._hub.put(
            [
                EngineHung(
                    at_ns=now_ns,
                    since_ns=since_ns,
                    kind=kind,
                    sequences=self._hub.open,
                    engine_pid=core.hello.pid if core.pid is None else core.pid,
                    process_state=None if core.pid is None else self._state_of(core.pid),
                )
            ]
        )

    def _recover(self, now_ns: int) -> None:
        since_ns, self._hung_since_ns = self._hung_since_ns, None
        self.health.hung_ns = None
        if since_ns is not None:
            self._hub.put([EngineRecovered(now_ns, since_ns)])
            log.warning("the engine works again")
