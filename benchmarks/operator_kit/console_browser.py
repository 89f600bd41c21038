"""A console in its own process, and tabs of a real Chromium that look at it.

Everything that a page must not do is collected while it is used: errors in its console, requests to
other hosts, the debug key in an address, serious findings of axe-core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from benchmarks.contract.client import HOST
from lab.load.processes import ended, free_port

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
TOKEN = "shown-to-work-by-a-token"
VIEWS = {
    "overview": "/",
    "batch": "/batch",
    "requests": "/requests",
    "incidents": "/incidents",
    "latency": "/latency",
    "limits": "/limits",
}
WIDE, PHONE = (1280, 800), (390, 844)
_ARGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
_READY_S = 60.0
_SERIOUS = ("serious", "critical")
_NICE = 10


class Failed(Exception):
    """Something that must hold does not; the message says what."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


@dataclass
class Seen:
    """What pages did that they must not do."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    axe: dict[str, list[str]] = field(default_factory=dict)

    def watch(self, page: Page) -> None:
        page.on("console", self._message)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)

    def check(self, *secrets: str) -> None:
        """Raises Failed."""
        require(not self.errors, f"errors in the browser's console: {self.errors[:5]}")
        require(not self.elsewhere, f"pages ask other hosts: {self.elsewhere[:5]}")
        told = [one for one in self.addresses for secret in secrets if secret in one]
        require(not told, "the debug key is in an address")
        found = {where: what for where, what in self.axe.items() if what}
        require(not found, f"axe-core finds: {found}")

    def _message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        where = urlsplit(request.url)
        self.addresses.append(request.url)
        if where.scheme not in ("data", "blob") and where.hostname not in (HOST, "localhost"):
            self.elsewhere.append(request.url)


class Console:
    """`phasescope console` of a server."""

    def __init__(self, url: str, debug_key: str | None = None) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.log = Path(tempfile.mkstemp(prefix="console-", suffix=".log")[1])
        words = ("console", url, "--port", str(self.port), "--with-parent")
        key = {} if debug_key is None else {"PHASESCOPE_DEBUG_KEY": debug_key}
        self._command = (sys.executable, "-m", "service.cli.main", *words)
        self._environment = {**os.environ, **key, "PHASESCOPE_CONSOLE_TOKEN": TOKEN}

    async def __aenter__(self) -> Console:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stderr=log, stdout=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        try:
            async with asyncio.timeout(_READY_S):
                while not await self._answers():
                    require(self._process.poll() is None, f"the console ended: {self.said()}")
                    await asyncio.sleep(0.2)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # as the end of its parent does
        try:
            await asyncio.to_thread(self._process.wait, 30)
        except subprocess.TimeoutExpired:
            await asyncio.to_thread(ended, self._process)
            require(any(error), "the console does not end with its parent")

    def said(self) -> str:
        return self.log.read_text(errors="replace").strip()

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        writer.close()
        return True


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser that leaves the CPU to the server where both want it."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGS))
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def tab(
    browser: Browser, seen: Seen, size: tuple[int, int] = WIDE, scheme: Any = "light"
) -> AsyncIterator[Page]:
    width, height = size
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme
    )
    page = await context.new_page()
    seen.watch(page)
    try:
        yield page
    finally:
        await context.close()


async def look(page: Page, url: str) -> None:
    """Open an address and wait until its page is drawn. Each tab has a jar of its own, so the token
    is shown each time."""
    await page.goto(f"{url}{'&' if '?' in url else '?'}token={TOKEN}", timeout=60_000)
    await page.wait_for_selector("main h1", timeout=45_000)
    await page.wait_for_timeout(800)


async def check_axe(page: Page, seen: Seen, where: str) -> None:
    """Note what axe-core finds serious."""
    results = await Axe().run(page)
    seen.axe[where] = [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}"
        for one in results.response["violations"]
        if one["impact"] in _SERIOUS
    ]


async def check_width(page: Page, where: str) -> None:
    """Nothing but tables, which scroll on their own, may be wider than the window."""
    wide = await page.evaluate("document.documentElement.scrollWidth")
    inner = await page.evaluate("window.innerWidth")
    require(wide <= inner, f"{where} is {wide} px wide in a window of {inner} px")


def yield_cpu() -> None:
    """This process and what it starts come after the server."""
    os.nice(_NICE)
