"""vLLM survives its observer: hooks that raise, a sidecar that is killed, frozen, slow or full.

Two servers, one after the other. On the first, each hook of the adapter raises twice while requests
of all kinds run, and then all hooks raise for good. On the second, blocks of load alternate between
a good sidecar and a bad one, in the order ABBA or BAAB, with a control of good against good. It
holds when not one request fails, nothing is slower by more than 5 %, which is measured where two
equal states do not differ by more, and the sidecar says what was turned off and counts what was
lost.

    .venv/bin/python -m benchmarks.attach.survive [--quick] [--eager] [--quads 3] [--only hooks]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.bad_sidecars import FULL, SLOW, BadSidecar
from benchmarks.attach.blocks import run_block
from benchmarks.attach.client import Stream
from benchmarks.attach.injected import FAULTS, FRONT_HOOKS, HOOKS, Faults
from benchmarks.attach.mixed import KINDS, SMALL_POOL, Users
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import NotSupported, now_ns
from benchmarks.contract.common import Figure, Report, at_least, at_most, equal, say, ticking
from benchmarks.paired import Block, Load, Pair, cost_figure, costs, pairs_of, quad_order

HOOKS_PART, SIDECAR_PART = "hooks", "sidecar"
USERS = 6
MORE = {"json_schema": 3.0, "disconnect": 3.0}  # grammars and aborts have hooks of their own
RAISES, WITHIN_S, AFTER_S = 2, 150.0, 20.0
PATIENCE = RAISES * len(FRONT_HOOKS) + 3  # several parts of a hook raise before it is turned off
GOOD, CONTROL = "good", "good again"
KILLED, FROZEN = "killed", "frozen"
BAD = (KILLED, FROZEN, SLOW, FULL)
LOAD = Load(streams=8, prompt=16, output=96, rounds=2)
QUICK_LOAD = Load(streams=4, prompt=16, output=32, rounds=1)
WAITING_BYTES = 16 * 1024  # the socket itself holds some 200 KiB, half a minute of steps
LOSS_S = 90.0
LIMIT_PERCENT = 5.0


@dataclass
class Found:
    """What the two parts saw."""

    figures: list[Figure] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)
    table: list[list[Any]] = field(default_factory=list)


# --- hooks -------------------------------------------------------------------------------------


async def hooks(args: argparse.Namespace, found: Found) -> None:
    """Every hook raises twice, then all for good."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        faults = Faults(Path(folder), HOOKS, errors=PATIENCE)
        async with (
            Sidecar() as sidecar,
            Vllm(
                *SMALL_POOL,
                *vllm_flags(args),
                attach_to=sidecar.socket,
                first_on_path=[FAULTS],
                environment=faults.environment,
            ) as server,
        ):
            await sidecar.until_attached()
            asked, quiet = await under_load(server, lambda: raise_everywhere(faults))
            attached = await sidecar.get("/debug/attach")
            is_alive = server.is_alive
    found.figures += [
        equal("hooks that were never called, so never raised", len(quiet), 0),
        equal("answers other than asked for, while hooks raised", len(asked.unexpected), 0),
        at_least("requests meanwhile", asked.asked.total(), 50 if not args.quick else 10),
        equal("vLLM ended", int(not is_alive), 0),
        at_least("hooks that the sidecar says are off", len(turned_off(attached)), 2),
    ]
    found.detail["hooks"] = {
        "raised": [hook for hook in HOOKS if hook not in quiet],
        "never_called": quiet,
        "asked": dict(asked.asked),
        "unexpected": asked.unexpected[:10],
        "turned_off": turned_off(attached),
    }


async def under_load(server: Vllm, work: Callable[[], Awaitable[list[str]]]
                     ) -> tuple[Users, list[str]]:  # fmt: skip
    """Mixed users while `work` is done, and a little longer."""

    async def told(kind: str, stream: Stream) -> None:
        return

    users = Users(server.port, USERS, told, kinds={**KINDS, **MORE})
    stop_ns = now_ns() + int(3600e9)
    running = asyncio.create_task(users.run(stop_ns))
    async with ticking("raising", lambda: f"{users.asked.total()} requests"):
        quiet = await work()
        await asyncio.sleep(AFTER_S)
    users.stop()
    await running
    return users, quiet


async def raise_everywhere(faults: Faults) -> list[str]:
    """The hooks that were not called within the time."""
    quiet = []
    for hook in HOOKS:
        faults.arm(hook, RAISES)
        deadline_ns = now_ns() + int(WITHIN_S * 1e9)
        while faults.left(hook) and now_ns() < deadline_ns:
            await asyncio.sleep(0.1)
        if faults.left(hook) == RAISES:
            quiet.append(hook)
        faults.arm(hook, 0)
        say(f"  {hook.rpartition('.inside.')[2]}: {'never called' if hook in quiet else 'raised'}")
    for hook in HOOKS:
        faults.arm(hook, -1)
    return quiet


def turned_off(attached: dict[str, Any]) -> list[str]:
    """What the adapter said is off, and why."""
    notes = attached["notes"]
    return [str(one["text"]) for one in notes if one["kind"] == "turned_off"]


# --- sidecar -----------------------------------------------------------------------------------


@asynccontextmanager
async def state_of(sidecar: Sidecar, state: str) -> AsyncIterator[None]:
    """The sidecar in a state; afterwards it is good again."""
    if state in (GOOD, CONTROL):
        yield
        return
    if state == FROZEN:
        os.kill(sidecar.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(sidecar.pid, signal.SIGCONT)
        return
    sidecar.kill()
    try:
        if state == KILLED:
            yield
        else:
            with BadSidecar(state, sidecar.socket):
                await asyncio.sleep(6.0)  # the adapter has found it
                yield
    finally:
        sidecar.socket.unlink(missing_ok=True)
        sidecar.launch()
        await sidecar.until_up()
        await sidecar.until_attached()


async def with_bad_sidecars(args: argparse.Namespace, found: Found) -> None:
    load = QUICK_LOAD if args.quick else LOAD
    pairs: dict[str, list[Pair]] = {kind: [] for kind in (CONTROL, *BAD)}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        faults = Faults(Path(folder), (), waiting_bytes=WAITING_BYTES)
        async with (
            Sidecar() as sidecar,
            Vllm(
                *vllm_flags(args),
                attach_to=sidecar.socket,
                first_on_path=[FAULTS],
                environment=faults.environment,
                cached=False,
            ) as server,
        ):
            await sidecar.until_attached()
            for turn in range(2):
                await run_block(server.port, load, GOOD, f"warm{turn}")
            for number in range(1 if args.quick else args.quads):
                for kind in pairs:
                    pairs[kind] += await quad(server, sidecar, load, kind, number, failures)
            lost = await losses(server, sidecar, load)
            is_alive = server.is_alive
    found.figures += [
        equal("blocks with a request that failed", len(failures), 0),
        equal("vLLM ended beside a bad sidecar", int(not is_alive), 0),
        at_least("facts that the sidecar counts as lost after it was frozen", lost, 1),
        *slower(pairs),
    ]
    found.detail["sidecar"] = {
        "failures": failures,
        "facts_lost": lost,
        "waiting_bytes": WAITING_BYTES,
        "costs": {
            kind: {name: cost.as_dict() for name, cost in costs(mine).items()}
            for kind, mine in pairs.items()
            if mine
        },
    }
    found.table += [["sidecar", "pairs", "throughput", "ITL p99"]]
    for kind, mine in pairs.items():
        if mine:
            cost = costs(mine)
            found.table.append([kind, len(mine), str(cost["throughput"]), str(cost["itl_p99"])])


async def quad(
    server: Vllm, sidecar: Sidecar, load: Load, kind: str, number: int, failures: list[str]
) -> list[Pair]:
    """Four blocks; none when a request failed, which is kept."""
    blocks: list[Block] = []
    for turn, state in enumerate(quad_order(GOOD, kind, number)):
        async with state_of(sidecar, state):
            try:
                block = await run_block(server.port, load, state, f"{kind}.{number}.{turn}")
            except NotSupported as error:
                failures.append(f"{state}: {error}")
                return []
        say(f"  {state}: {block.summary()['tokens_per_s']} tokens/s")
        blocks.append(block)
    return pairs_of(blocks, number)


async def losses(server: Vllm, sidecar: Sidecar, load: Load) -> int:
    """Facts that are counted as lost after the sidecar was frozen for longer than the adapter can
    keep them."""
    end_ns, turn = now_ns() + int(LOSS_S * 1e9), 0
    async with state_of(sidecar, FROZEN):
        while now_ns() < end_ns:
            await run_block(server.port, load, FROZEN, f"loss.{turn}")
            turn += 1
    await asyncio.sleep(8.0)  # what waited is sent, and folded
    return int((await sidecar.get("/debug/snapshot"))["facts_lost"])


def slower(pairs: dict[str, list[Pair]]) -> list[Figure]:
    """How much slower a bad sidecar makes vLLM at most, where equal states can tell."""
    control = costs(pairs[CONTROL]) if pairs[CONTROL] else None
    found: list[Figure] = []
    for kind in BAD:
        mine = costs(pairs[kind]) if pairs[kind] else None
        for name in ("throughput", "itl_p99"):
            label = f"{name} cost with a {kind} sidecar, upper end, %"
            if control is None or mine is None:
                found.append(at_most(label, None, LIMIT_PERCENT))
            else:
                found.append(cost_figure(label, mine[name], control[name], LIMIT_PERCENT))
    return found


async def check(args: argparse.Namespace) -> Report:
    found = Found()
    if args.only in (None, HOOKS_PART):
        await hooks(args, found)
    if args.only in (None, SIDECAR_PART):
        await with_bad_sidecars(args, found)
    flags = {"vllm": [*SMALL_POOL, *vllm_flags(args)]}
    name = "survive" if args.only is None else f"survive_{args.only}"
    return Report(name, found.figures, flags, found.detail, found.table)


def main() -> int:
    parser = parser_of("survive", __doc__ or "")
    parser.add_argument("--quads", type=int, default=3, help="quads of each kind (default 3)")
    parser.add_argument("--only", choices=[HOOKS_PART, SIDECAR_PART], help="one part of the two")
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
