"""What watching costs: a vLLM with the plugin and a sidecar against one without, in pairs.

Two servers live at once, warm, and take turns; the other is idle meanwhile. Blocks come in the
order ABBA or BAAB, so that a drift of the machine hits both alike. Two processes are never quite
equal, so sessions differ in which of the two has the plugin, and in every second one neither has:
that is the control, whose base is once the one and once the other, and what it shows is noise. The
sidecar exports every trace to a receiver in a process of its own, and is scraped as in production,
while the server with the plugin is loaded.

What has been measured is kept in `--work`; the same command goes on from there.

    .venv/bin/python -m benchmarks.attach.overhead [--quads 8] [--sessions 4] [--quick] [--eager]
        [--most N] [--work FOLDER] [--again]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.blocks import run_block
from benchmarks.attach.client import get_text
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import NotSupported, now_ns
from benchmarks.contract.common import Figure, Report, at_least, say
from benchmarks.fault_receiver import FaultReceiver
from benchmarks.paired import Block, Load, Pair, cost_figure, costs, pairs_of, quad_order

OFF, CONTROL, ON = "off", "off again", "on"
LIMIT_PERCENT = 1.0
LEAST_PAIRS = 30
SCRAPE_S, SNAPSHOT_S = 5.0, 0.5
WARM_UP_BLOCKS = 2
LOAD = Load(streams=8, prompt=16, output=192, rounds=3)
QUICK_LOAD = Load(streams=4, prompt=16, output=48, rounds=2)


class Session(StrEnum):
    """Which of the two servers is not the base, and whether it has the plugin."""

    FIRST = "first has the plugin"
    SECOND = "second has the plugin"
    FIRST_EQUAL = "first against its equal"
    SECOND_EQUAL = "second against its equal"

    @property
    def is_control(self) -> bool:
        return self in (Session.FIRST_EQUAL, Session.SECOND_EQUAL)

    @property
    def is_first(self) -> bool:
        return self in (Session.FIRST, Session.FIRST_EQUAL)


PLAN = (Session.FIRST, Session.SECOND_EQUAL, Session.SECOND, Session.FIRST_EQUAL)


class KeptBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One block. `sidecar_s` is the sidecar's CPU time in it, of `seconds`."""

    state: str
    tokens_per_s: float
    gaps_ms: list[float]
    seconds: float
    sidecar_s: float | None = None

    @property
    def block(self) -> Block:
        return Block(self.state, self.tokens_per_s, np.array(self.gaps_ms))


class KeptQuad(msgspec.Struct, frozen=True, kw_only=True):
    """Four neighbouring blocks of a session, in the order of `paired.quad_order`."""

    session: Session
    number: int
    blocks: list[KeptBlock]

    @property
    def pairs(self) -> list[Pair]:
        return pairs_of([one.block for one in self.blocks], self.number)


@dataclass(frozen=True)
class Place:
    """Where a quad is kept."""

    folder: Path

    def path(self, session: int, number: int) -> Path:
        return self.folder / f"session{session}-quad{number:02d}.json"

    def read(self) -> list[KeptQuad]:
        paths = sorted(self.folder.glob("session*-quad*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=KeptQuad) for path in paths]

    def keep(self, session: int, quad: KeptQuad) -> None:
        """Atomically: a run may be cut at any moment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(session, quad.number)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(quad))
        part.replace(path)


@dataclass
class Two:
    """The two servers of a session, and the sidecar of the one with the plugin."""

    session: Session
    servers: tuple[Vllm, Vllm]
    sidecar: Sidecar | None

    def server_of(self, state: str) -> Vllm:
        first, second = self.servers
        base, other = (second, first) if self.session.is_first else (first, second)
        return base if state == OFF else other

    @property
    def other(self) -> str:
        return CONTROL if self.session.is_control else ON

    async def block(self, state: str, load: Load, seed: str) -> KeptBlock:
        watched = self.sidecar if state == ON else None
        async with scraping(watched.port) if watched else contextlib.nullcontext():
            begin_ns, spent_ns = now_ns(), watched.cpu_ns if watched else 0
            block = await run_block(self.server_of(state).port, load, state, seed)
            seconds = (now_ns() - begin_ns) / 1e9
            spent_s = (watched.cpu_ns - spent_ns) / 1e9 if watched else None
        shown = block.summary()
        say(f"    {state}: {shown['tokens_per_s']} tokens/s, p99 {shown['itl_p99_ms']} ms")
        return KeptBlock(
            state=state,
            tokens_per_s=block.tokens_per_s,
            gaps_ms=[round(float(gap), 4) for gap in block.gaps_ms],
            seconds=seconds,
            sidecar_s=spent_s,
        )


@contextlib.asynccontextmanager
async def scraping(port: int) -> AsyncIterator[None]:
    """What watches a sidecar in production."""

    async def every(path: str, pause_s: float) -> None:
        while True:
            await get_text(port, path)
            await asyncio.sleep(pause_s)

    tasks = [
        asyncio.create_task(every("/metrics", SCRAPE_S)),
        asyncio.create_task(every("/debug/snapshot", SNAPSHOT_S)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def two_servers(session: Session, flags: Sequence[str]) -> AsyncIterator[Two]:
    """Both started, one after the other; with the plugin, a sidecar that exports."""
    async with contextlib.AsyncExitStack() as stack:
        sidecar = None
        if not session.is_control:
            receiver = stack.enter_context(FaultReceiver("grpc"))
            sidecar = await stack.enter_async_context(Sidecar(*receiver.flags))
        found = []
        for is_first in (True, False):
            is_other = session.is_first is is_first
            attach_to = sidecar.socket if sidecar is not None and is_other else None
            server = Vllm(*flags, attach_to=attach_to, cached=False)
            found.append(await stack.enter_async_context(server))
        if sidecar is not None:
            await sidecar.until_attached()
        yield Two(session, (found[0], found[1]), sidecar)


async def run_session(
    number: int, session: Session, quads: list[int], load: Load, flags: Sequence[str], place: Place
) -> None:
    """The quads of a session that are missing."""
    async with two_servers(session, flags) as two:
        for turn in range(WARM_UP_BLOCKS):
            for state in (OFF, two.other):
                await two.block(state, load, f"warm.{turn}.{state}")
        for quad in quads:
            say(f"  session {number + 1} ({session.value}), quad {quad + 1}:")
            blocks = [
                await two.block(state, load, f"{number}.{quad}.{turn}")
                for turn, state in enumerate(quad_order(OFF, two.other, quad))
            ]
            place.keep(number, KeptQuad(session=session, number=quad, blocks=blocks))


# --- what it says ------------------------------------------------------------------------------


def by_kind(quads: Sequence[KeptQuad]) -> dict[str, list[Pair]]:
    """Pairs of on against off, and of the control."""
    found: dict[str, list[Pair]] = {ON: [], CONTROL: []}
    for quad in quads:
        kind = CONTROL if quad.session.is_control else ON
        found[kind] += quad.pairs
    return found


def sidecar_share(quads: Sequence[KeptQuad]) -> float | None:
    """The sidecar's CPU time, as a share of one core."""
    blocks = [one for quad in quads for one in quad.blocks if one.sidecar_s is not None]
    seconds = sum(one.seconds for one in blocks)
    return sum(one.sidecar_s or 0.0 for one in blocks) / seconds if seconds else None


def figures(pairs: dict[str, list[Pair]]) -> list[Figure]:
    """What it costs, where two equal servers do not differ by more than the limit."""
    control, mine = costs(pairs[CONTROL]), costs(pairs[ON])
    found = [
        at_least("pairs of on against off", len(pairs[ON]), LEAST_PAIRS),
        at_least("pairs of the control", len(pairs[CONTROL]), LEAST_PAIRS),
    ]
    for name in ("throughput", "itl_p99"):
        label = f"{name} cost, upper end, %"
        found.append(cost_figure(label, mine[name], control[name], LIMIT_PERCENT))
    return found


def report(quads: Sequence[KeptQuad], load: Load, flags: Sequence[str]) -> Report:
    pairs = by_kind(quads)
    for kind, found in pairs.items():
        if not found:
            raise NotSupported(f"no pairs of {kind!r} yet; run it again without --most")
    table: list[list[Any]] = [["state", "pairs", "throughput", "ITL p50", "ITL p99"]]
    made = {kind: costs(found) for kind, found in pairs.items()}
    for kind, cost in made.items():
        cells = [str(cost[name]) for name in ("throughput", "itl_p50", "itl_p99")]
        table.append([kind, len(pairs[kind]), *cells])
    share = sidecar_share(quads)
    say(f"the sidecar took {100 * (share or 0.0):.1f} % of a core while its server was loaded")
    detail = {
        "costs": {
            kind: {name: one.as_dict() for name, one in cost.items()} for kind, cost in made.items()
        },
        "sidecar_share_of_a_core": share,
        "load": msgspec.to_builtins(load),
        "scraped_every_s": {"/metrics": SCRAPE_S, "/debug/snapshot": SNAPSHOT_S},
        "blocks": [
            {**one.block.summary(), "session": quad.session.value, "sidecar_s": one.sidecar_s}
            for quad in quads
            for one in quad.blocks
        ],
    }
    return Report("overhead", figures(pairs), {"vllm": list(flags)}, detail, table)


def missing(place: Place, sessions: int, quads: int) -> list[tuple[int, Session, list[int]]]:
    """What is to be run: sessions with the quads that are not there."""
    plan = [(number, PLAN[number % len(PLAN)]) for number in range(sessions)]
    found = [
        (number, session, [q for q in range(quads) if not place.path(number, q).exists()])
        for number, session in plan
    ]
    return [one for one in found if one[2]]


async def check(args: argparse.Namespace) -> Report:
    load = QUICK_LOAD if args.quick else LOAD
    sessions, quads = (2, 1) if args.quick else (args.sessions, args.quads)
    place = Place(args.work / ("quick" if args.quick else "full"))
    if args.again:
        shutil.rmtree(place.folder, ignore_errors=True)
    todo = missing(place, sessions, quads)
    say(f"{sum(len(one[2]) for one in todo)} of {sessions * quads} quads to run")
    for number, session, mine in todo[: args.most]:
        await run_session(number, session, mine, load, vllm_flags(args), place)
    return report(place.read(), load, vllm_flags(args))


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = parser_of("overhead", __doc__ or "")
    add = parser.add_argument
    add("--sessions", type=int, default=len(PLAN), help="starts of two servers (default 4)")
    add("--quads", type=int, default=8, help="quads, of two pairs, in a session (default 8)")
    add("--most", type=int, default=sys.maxsize, help="stop after so many sessions")
    add("--work", type=Path, default=cache / "phasescope" / "attach" / "overhead")
    add("--again", action="store_true", help="forget what was measured")
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
