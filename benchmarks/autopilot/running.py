"""One run: a server of its own, open-loop traffic, and what clients and the autopilot saw."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.autopilot.drills import Stream
from benchmarks.promised import Slo
from lab.drills.capacity import capacity_of
from lab.drills.client import Clients, Sent
from lab.drills.servers import Cores, DrillServer, Say, pinned_here
from lab.drills.spec import USERS
from lab.drills.traffic import PlannedRequest
from telemetry.facts.clock import MonotonicClock

_DRAIN_S = 10.0
_POLL_S = 2.0
_CAPACITY_S = 20.0
_LEAD_S = 0.3
RECORD = "record.journal"
UNPROMISED = "unpromised"  # the SLO class of a culprit
_NO_PROMISE = Slo(ttft_ms=600_000, itl_ms=600_000, objective=0.5)

Parts = Sequence[tuple[float, float, Sequence[Stream]]]
"""Begin and end in s, and what comes in between."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the autopilot, `at_s` after the traffic began."""

    at_s: float
    decision: str
    reason: str
    limits: dict[str, Any]
    before: dict[str, float]
    promised: dict[str, float]
    measured: dict[str, float]
    why: str


class Seen(msgspec.Struct, kw_only=True):
    """One run."""

    begin_ns: int
    log: list[Sent]
    decisions: list[Decided]
    limits: dict[str, Any]
    search_cpu_s: float
    searches: int
    failure: Any = None


def slo_file(slo: Slo) -> str:
    """All are of class chat, culprits apart."""
    return f"{slo.as_toml()}\n{_NO_PROMISE.as_class(UNPROMISED)}"


async def capacities(
    streams: Sequence[Stream],
    flags: Sequence[str],
    work: Path,
    say: Say,
    cores: Cores,
    users: int = USERS,
) -> dict[str, float]:
    """Requests a second that so many clients get of a server with the good setting, by mix; kept in
    `work`."""
    clock = MonotonicClock()
    found: dict[str, float] = {}
    for stream in streams:
        if stream.mix.name not in found:
            one = await capacity_of(flags, stream.mix, _CAPACITY_S, work, clock, say, cores, users)
            found[stream.mix.name] = one.requests_per_s
    return found


def requests_of(seed: int, parts: Parts, capacity: dict[str, float]) -> list[PlannedRequest]:
    """The same for the same arguments."""
    found: list[PlannedRequest] = []
    for number, (begin_s, end_s, streams) in enumerate(parts):
        for place, stream in enumerate(streams):
            draw = np.random.default_rng([seed, number, place])
            mean_s = 1 / (stream.load * capacity[stream.mix.name])
            at_s = begin_s + float(draw.exponential(mean_s))
            while at_s < end_s:
                body = stream.mix.body(draw)
                found.append(
                    PlannedRequest(
                        at_s=at_s,
                        body=body,
                        tenant=stream.tenant,
                        is_culprit=stream.is_culprit,
                        slo_class=UNPROMISED if stream.is_culprit else None,
                    )
                )
                at_s += float(draw.exponential(mean_s))
    return sorted(found, key=lambda one: one.at_s)


async def run(
    flags: Sequence[str],
    limits: dict[str, Any],
    requests: Sequence[PlannedRequest],
    seconds: float,
    folder: Path,
    say: Say,
    cores: Cores,
) -> Seen:
    """Start, set `limits` as a rollout does, send, and end. The record is kept in `folder`."""
    clock = MonotonicClock()
    async with DrillServer(flags, folder, clock, say, cores=cores) as server:
        if limits:
            await asyncio.to_thread(_set, server.url, limits)
        clients = Clients(server.port, clock, "w")
        begin_ns = clock.now_ns() + int(_LEAD_S * 1e9)
        watched = asyncio.create_task(_watch(server.url, clock, begin_ns, say))
        try:
            with pinned_here(cores.rest):
                await clients.send_all(requests, begin_ns)
                rest_s = begin_ns / 1e9 + seconds - clock.now_ns() / 1e9
                await asyncio.sleep(max(0.0, rest_s))
                await clients.wait(_DRAIN_S)
            view, at_s = await _view(server.url, clock, begin_ns)
            in_force = await asyncio.to_thread(_get, server.url, "/debug/limits")
            await server.save_journal(folder / RECORD)
        finally:
            watched.cancel()
            await asyncio.gather(watched, return_exceptions=True)
            await clients.cancel_open()
        return Seen(
            begin_ns=begin_ns,
            log=clients.log,
            decisions=[_decided(one, at_s) for one in view["decisions"]],
            limits={name: one["value"] for name, one in in_force["limits"].items()},
            search_cpu_s=view["search_cpu_s"],
            searches=view["searches"],
            failure=view["failure"],
        )


async def _watch(url: str, clock: MonotonicClock, begin_ns: int, say: Say) -> None:
    """Say each decision when it comes."""
    told = -1
    while True:
        await asyncio.sleep(_POLL_S)
        try:
            view, at_s = await _view(url, clock, begin_ns)
        except OSError:
            continue
        decisions = [_decided(one, at_s) for one in view["decisions"]]
        for one in decisions[max(0, told) :]:
            say(f"{one.at_s:4.0f} s {one.decision} {one.limits}: {one.why}")
        told = len(decisions)


async def _view(url: str, clock: MonotonicClock, begin_ns: int) -> tuple[dict[str, Any], float]:
    """The autopilot's view, and when it was read."""
    found = await asyncio.to_thread(_get, url, "/debug/autopilot")
    return found, (clock.now_ns() - begin_ns) / 1e9


def _decided(one: dict[str, Any], at_s: float) -> Decided:
    return Decided(
        at_s=round(at_s - one["ago_s"], 1),
        **{name: one[name] for name in Decided.__struct_fields__ if name != "at_s"},
    )


def _get(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _set(url: str, limits: dict[str, Any]) -> None:
    body = json.dumps({**limits, "by": "config", "why": "rolled out"}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + "/debug/limits", body, headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
