"""Capacity of a server with one mix of requests: a closed loop, measured once for all episodes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from lab.drills.client import Clients
from lab.drills.servers import Cores, DrillServer, Say, pinned_here
from lab.drills.spec import USERS, Capacity
from lab.drills.traffic import TENANTS, Mix, PlannedRequest
from telemetry.facts.clock import Clock

_FILE = "capacity.json"
_SETTLE_SHARE = 0.25


async def capacity_of(
    flags: Sequence[str],
    mix: Mix,
    seconds: float,
    out: Path,
    clock: Clock,
    say: Say,
    cores: Cores,
    users: int = USERS,
) -> Capacity:
    """The capacity from an earlier measurement below `out`, or measured on a new server. It is the
    most that the server can do only if `users` are as many as it has places."""
    path, key = out / _FILE, f"{mix.name} for {users}: {' '.join(flags)}"
    known = _read(path)
    if key in known:
        return known[key]
    name = hashlib.sha256(key.encode()).hexdigest()[:12]
    async with DrillServer(flags, out / "capacity" / name, clock, say, cores=cores) as server:
        say(f"measuring the capacity with the mix {mix.name!r}: {seconds:g} s")
        with pinned_here(cores.rest):
            found = await measure(server.port, mix, seconds, clock, users)
    tokens_per_s = f"{found.tokens_per_s:.0f} tokens/s"
    say(f"{users} clients get {found.requests_per_s:.2f} requests/s, {tokens_per_s}")
    path.write_bytes(msgspec.json.format(msgspec.json.encode({**_read(path), key: found})))
    return found


async def measure(
    port: int, mix: Mix, seconds: float, clock: Clock, users: int = USERS
) -> Capacity:
    """`users` clients, each of which sends when its last reply is complete; the first quarter is
    left out."""
    clients, draw = Clients(port, clock, "c"), np.random.default_rng(11)
    begin_ns = clock.now_ns()
    settled_ns = begin_ns + int(_SETTLE_SHARE * seconds * 1e9)
    end_ns = begin_ns + int(seconds * 1e9)

    async def user(number: int) -> None:
        tenant = TENANTS[number % len(TENANTS)]
        while clock.now_ns() < end_ns:
            request = PlannedRequest(at_s=0, body=mix.body(draw), tenant=tenant)
            await clients.send(request, clock.now_ns())

    await asyncio.gather(*(user(number) for number in range(users)))
    done = [one for one in clients.log if one.is_good and settled_ns < (one.end_ns or 0) < end_ns]
    if not done:
        raise RuntimeError("no request was served while capacity was measured")
    span_s = (end_ns - settled_ns) / 1e9
    tokens = sum(one.tokens for one in done)
    return Capacity(requests_per_s=len(done) / span_s, tokens_per_s=tokens / span_s)


def _read(path: Path) -> dict[str, Capacity]:
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Capacity])
