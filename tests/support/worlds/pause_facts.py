"""Pauses, and the facts around them, for tests of their victims."""

from __future__ import annotations

from telemetry.facts.engine_records import (
    EngineIdled,
)
from telemetry.facts.host_records import HostPaused, HostSampled
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.records import Fact
from telemetry.host.host_impact import HostImpact, Impact
from telemetry.host.pauses import Pause, PauseLog
from tests.support.worlds.facts import (
    MS,
)

ENGINE, GATEWAY = HostProcess.ENGINE, HostProcess.GATEWAY
GC, OFF_CPU, BLOCKED = PauseCause.GC, PauseCause.OFF_CPU, PauseCause.LOOP_BLOCKED


def pause(begin: int, end: int, cause: PauseCause = GC, lost: int | None = None) -> Pause:
    lost_ns = (end - begin if lost is None else lost) * MS
    return Pause(begin * MS, end * MS, ENGINE, cause, "", lost_ns)


def paused(
    begin: int,
    end: int,
    process: HostProcess = ENGINE,
    cause: PauseCause = GC,
    lost: int | None = None,
) -> HostPaused:
    lost_ns = None if lost is None else lost * MS
    return HostPaused(end * MS, begin * MS, end * MS, process, cause, "detail", lost_ns)


def idled(at: int) -> EngineIdled:
    return EngineIdled(at * MS, 0, 0, 0, 0, 10)


def later(at: int = 5000) -> HostSampled:
    """A fact long after everything else, so that all pauses are settled."""
    return HostSampled(at_ns=at * MS, window_ns=1000 * MS)


def settled(*facts: Fact) -> list[Pause]:
    found: list[Pause] = []
    PauseLog(found.append).on_facts([*facts, later()])
    return found


def impacts(*facts: Fact) -> list[Impact]:
    """As the pump feeds them: both folds see the same facts, the impact's first."""
    impact = HostImpact()
    log = PauseLog(impact.on_pause)
    for batch in ([*facts], [later()]):
        impact.on_facts(batch)
        log.on_facts(batch)
    return list(impact.impacts)


def by_ms(found: Impact) -> dict[str, int]:
    return {victim.request_id: victim.lost_ns // MS for victim in found.victims}
