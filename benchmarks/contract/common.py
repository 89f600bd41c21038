"""What the contract checks share: a server of their own, figures and the files of results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contract.client import NotSupported, call, message_of, now_ns
from benchmarks.machine import CORES, machine
from benchmarks.samples import known_quantile
from lab.load.processes import ended, free_port

READY_TIMEOUT_S, STOP_WITHIN_S = 300, 20.0

# one core is left to the gateway and to this client, or the client would measure itself
BASE_FLAGS = ("--threads", str(max(1, CORES - 1)))


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    quick: bool
    minutes: float
    out: Path


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.asynccontextmanager
async def ticking(what: str, state: Callable[[], str] = str) -> AsyncIterator[None]:
    """Say what is going on after two seconds, and every five from then on."""

    async def tick() -> None:
        begin_ns, pause_s = now_ns(), 2.0
        while True:
            await asyncio.sleep(pause_s)
            say(f"  {what}: {(now_ns() - begin_ns) / 1e9:.0f} s {state()}".rstrip())
            pause_s = 5.0

    ticker = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticker.cancel()


# --- figures and results -----------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One acceptance figure; `value` None: it could not be measured, so it does not hold."""

    name: str
    value: float | None
    limit: str
    holds: bool

    def line(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.name}: {value}, limit {self.limit}: " + (
            "holds" if self.holds else "does not hold"
        )


def at_most(name: str, value: float | None, limit: float) -> Figure:
    return Figure(name, value, f"<= {limit:.4g}", value is not None and value <= limit)


def at_least(name: str, value: float | None, limit: float) -> Figure:
    return Figure(name, value, f">= {limit:.4g}", value is not None and value >= limit)


def above(name: str, value: float | None, limit: float) -> Figure:
    return Figure(name, value, f"> {limit:.4g}", value is not None and value > limit)


def equal(name: str, value: float | None, limit: float) -> Figure:
    return Figure(name, value, f"= {limit:.4g}", value == limit)


def percentile(values: Iterable[float], share: float) -> float | None:
    """The percentile by the server's own definition; None of too few."""
    return known_quantile(values, share)


def ratio(upper: float | None, lower: float | None) -> float | None:
    return upper / lower if upper is not None and lower else None


@dataclass
class Report:
    """What one check found. `table` is its first row and the rows below it."""

    name: str
    figures: list[Figure]
    servers: dict[str, list[str]]
    detail: dict[str, Any]
    table: list[list[Any]] = field(default_factory=list)

    def finish(self, options: Options) -> bool:
        """Write the file, print table and figures; True when all figures hold."""
        options.out.mkdir(parents=True, exist_ok=True)
        about = {
            "name": self.name,
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "machine": machine(),
            "quick": options.quick,
            "servers": self.servers,
            "figures": [asdict(figure) for figure in self.figures],
        }
        path = options.out / f"{self.name}.json"
        found = finite({**about, **self.detail})
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
        for number, row in enumerate(self.table):
            say("| " + " | ".join(_cell(value) for value in row) + " |")
            if number == 0:
                say("|" + "---|" * len(row))
        for figure in self.figures:
            say(f"{self.name}: {figure.line()}")
        return all(figure.holds for figure in self.figures)


def finite(value: Any) -> Any:
    """The same with None for a number that JSON has not: never, or not known."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- the server --------------------------------------------------------------------------


class Server:
    """`async with Server("--max-num-seqs", "4") as server:`, in processes of its own."""

    def __init__(self, *flags: str) -> None:
        self.flags = [*BASE_FLAGS, *flags]
        self.port = free_port()
        self._log = tempfile.NamedTemporaryFile(prefix="contract-", suffix=".log")  # noqa: SIM115

    async def __aenter__(self) -> Server:
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *self.flags], stderr=self._log, start_new_session=True
        )
        try:
            async with ticking("starting a server"):
                await self._until_ready()
            self.engine_pid: int = (await self.snapshot())["engine_pid"]
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(ended, self.process, STOP_WITHIN_S)
        self._log.close()

    async def ended(self, timeout_s: float) -> int:
        """The exit status; TimeoutError when the process does not end."""
        async with asyncio.timeout(timeout_s):
            while (status := self.process.poll()) is None:
                await asyncio.sleep(0.02)
        return status

    async def _until_ready(self) -> None:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if self.process.poll() is not None:
                    last = Path(self._log.name).read_text().strip().splitlines()[-1:]
                    raise NotSupported(f"the server did not start: {' '.join(last)}")
                with contextlib.suppress(OSError, EOFError):
                    if (await call(self.port, "GET", "/ready"))[0] == 200:
                        return
                await asyncio.sleep(0.2)

    async def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = (await call(self.port, "GET", "/debug/snapshot"))[1]
        return found

    async def facts_of(self, request_id: str, timeout_s: float = 10.0) -> dict[str, Any] | None:
        """`/debug/requests/{id}` once the request has ended; None when it is not known."""
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        missing_since_ns: int | None = None
        while now_ns() < deadline_ns:
            status, found = await call(self.port, "GET", f"/debug/requests/{request_id}")
            if status == 200 and found["outcome"] != "running":
                known: dict[str, Any] = found
                return known
            missing_since_ns = (missing_since_ns or now_ns()) if status == 404 else None
            if missing_since_ns is not None and now_ns() - missing_since_ns > 1_000_000_000:
                return None
            await asyncio.sleep(0.05)
        return None

    async def until_empty(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """The snapshot once nothing runs, waits or holds a block; else the last one."""
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        async with ticking("waiting for an empty engine"):
            while True:
                seen = await self.snapshot()
                idle = (seen["running"], seen["waiting"], seen["blocks_used"]) == (0, 0, 0)
                if idle or now_ns() > deadline_ns:
                    return seen
                await asyncio.sleep(0.05)

    async def require(self, method: str, path: str) -> Any:
        """The body of a 2xx answer; NotSupported for anything else."""
        status, found = await call(self.port, method, path)
        if status >= 300:
            raise NotSupported(f"{method} {path} was answered {status}: {message_of(found)}")
        return found
