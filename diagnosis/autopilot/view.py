"""What `/debug/autopilot` answers, and the line of the monitor is made of."""

from __future__ import annotations

from typing import Any

import msgspec

from diagnosis.autopilot.bounds import Bounds, LimitBounds
from diagnosis.autopilot.pilot import Pilot
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.limits import LimitValue


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """One decision; shares are of requests that met their SLO, by class."""

    ago_s: float
    number: int
    decision: str
    reason: str
    limits: dict[str, LimitValue]
    was: dict[str, LimitValue]
    before: dict[str, float]
    promised: dict[str, float]
    measured: dict[str, float]
    why: str


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """The change that is in force and not yet decided. `needs_requests`: about so many tell the
    promise from what was before. `is_settled`: the queue from before has emptied."""

    number: int
    limits: dict[str, LimitValue]
    back: dict[str, LimitValue]
    promised: dict[str, float]
    measured: dict[str, float]
    requests: dict[str, int]
    needs_requests: int | None
    is_settled: bool


class AutopilotView(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped` are limits that an operator has taken over; `cooling_s` says how long others are
    left alone; `tried` were rolled back. `why_off` is set where it does not run."""

    mode: str
    state: str
    since_s: float = 0.0
    measuring: Measuring | None = None
    decisions: tuple[Decided, ...] = ()
    stopped: tuple[str, ...] = ()
    cooling_s: dict[str, float] = {}
    tried: tuple[dict[str, LimitValue], ...] = ()
    bounds: dict[str, LimitBounds] = {}
    searches: int = 0
    search_cpu_s: float = 0.0
    failure: Any = None
    why_off: str = ""


def view_of(
    pilot: Pilot,
    mode: str,
    bounds: Bounds,
    decisions: tuple[AutopilotDecided, ...],
    now_ns: int,
    *,
    searches: int,
    search_cpu_s: float,
    failure: Any,
) -> AutopilotView:
    """`decisions` are the last ones, oldest first."""
    cools = pilot.memory.cools_until_ns().items()
    return AutopilotView(
        mode=mode,
        state=pilot.state.value,
        since_s=_seconds(now_ns - pilot.since_ns) if pilot.since_ns else 0.0,
        measuring=_measuring(pilot, now_ns),
        decisions=tuple(_decided(one, now_ns) for one in decisions),
        stopped=tuple(sorted(pilot.memory.stopped)),
        cooling_s={name: _seconds(at_ns - now_ns) for name, at_ns in cools if at_ns > now_ns},
        tried=tuple(pilot.memory.tried),
        bounds=bounds,
        searches=searches,
        search_cpu_s=round(search_cpu_s, 3),
        failure=failure,
    )


def _measuring(pilot: Pilot, now_ns: int) -> Measuring | None:
    if pilot.attempt is None:
        return None
    running = pilot.attempt.running
    found = running.measured(pilot.books, now_ns)
    return Measuring(
        number=running.number,
        limits=running.proposal.values,
        back=running.back,
        promised=running.proposal.promised,
        measured={name: round(one.share, 4) for name, one in found.items()},
        requests={name: one.requests for name, one in found.items()},
        needs_requests=running.needed,
        is_settled=running.settled_ns is not None,
    )


def _decided(fact: AutopilotDecided, now_ns: int) -> Decided:
    return Decided(
        ago_s=_seconds(now_ns - fact.at_ns),
        number=fact.number,
        decision=fact.decision.value,
        reason=fact.reason.value,
        limits=fact.limits,
        was=fact.was,
        before=fact.before,
        promised=fact.promised,
        measured=fact.measured,
        why=fact.why,
    )


def _seconds(span_ns: int) -> float:
    return round(span_ns / 1e9, 1)
