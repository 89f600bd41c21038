"""What the console is shown with: streams that go on, and long prompts among them.

The fault is the usual one: a few prompts that are computed in one piece make the tokens of all
streams late. Requests have names that say what they are, so that a page can be checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Exchange, NotSupported, completion, prompt_ids

USERS = 4
LONG_TOKENS, LONG_EVERY_S = 900, 2.0
CULPRIT, VICTIM = "report", "chat"
TENANTS = ("red", "green", "blue")
SLO = """
[classes.chat]
ttft_ms = 4000
itl_ms = 700

[classes.batch]
ttft_ms = 20000
itl_ms = 5000
"""  # a calm server keeps them on a slow machine too; a prompt in one piece does not
FLAGS = ("--max-num-seqs", "16", "--max-model-len", "2048", "--weights", "int8",
         "--no-chunked-prefill", "--no-prefix-cache")  # fmt: skip


def slo_flags(folder: Path) -> tuple[str, ...]:
    path = folder / "slo.toml"
    path.write_text(SLO)
    return ("--slo-file", str(path))


class Traffic:
    """Streams of a few users; `fault()` adds the long prompts, `calm()` ends them. A server that
    is gone for a while is asked again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._users: list[asyncio.Task[None]] = []
        self._fault: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._users = [asyncio.create_task(self._user(number)) for number in range(USERS)]

    def fault(self) -> None:
        self._fault = asyncio.create_task(self._long_prompts())

    async def calm(self) -> None:
        if self._fault is not None:
            self._fault.cancel()
            await asyncio.gather(self._fault, return_exceptions=True)

    async def stop(self) -> None:
        await self.calm()
        for task in self._users:
            task.cancel()
        await asyncio.gather(*self._users, return_exceptions=True)

    async def _user(self, number: int) -> None:
        draw = random.Random(number)
        while True:
            output = draw.randint(40, 80)
            name = f"{VICTIM}-{next(self._numbers)}"
            prompt = draw.randint(16, 48)
            tenant = TENANTS[number % len(TENANTS)]
            await self._send(name, completion(prompt_ids(name, prompt), output), tenant, "chat")
            await asyncio.sleep(0.3)

    async def _long_prompts(self) -> None:
        while True:
            name = f"{CULPRIT}-{next(self._numbers)}"
            body = completion(prompt_ids(name, LONG_TOKENS), 4)
            await self._send(name, body, "reports", "batch")
            await asyncio.sleep(LONG_EVERY_S)

    async def _send(self, name: str, body: dict[str, Any], tenant: str, slo_class: str) -> None:
        headers = {"x-request-id": name, "x-tenant": tenant, "x-slo-class": slo_class}
        with contextlib.suppress(OSError, EOFError, ValueError, NotSupported):
            exchange = await Exchange.begin(self._port, "POST", COMPLETIONS, body, headers)
            try:
                await exchange.head()
                async for _ in exchange.pieces():
                    pass
            finally:
                exchange.leave()
            return
        await asyncio.sleep(1.0)


async def many_requests(port: int, count: int, at_once: int = 16) -> None:
    """So many short requests, of all classes and tenants."""
    numbers = iter(range(count))

    async def worker(send: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        for number in numbers:
            await send(number)

    async def send(number: int) -> None:
        name = f"many-{number}"
        headers = {"x-request-id": name, "x-tenant": TENANTS[number % 3],
                   "x-slo-class": ("chat", "code", "voice")[number % 3]}  # fmt: skip
        body = {**completion(name, 2), "stream": False}
        del body["stream_options"]
        exchange = await Exchange.begin(port, "POST", COMPLETIONS, body, headers)
        try:
            if await exchange.head() != 200:
                raise SystemExit(f"request {number} was answered {exchange.status}")
            async for _ in exchange.pieces():
                pass
        finally:
            exchange.leave()

    await asyncio.gather(*(worker(send) for _ in range(at_once)))
