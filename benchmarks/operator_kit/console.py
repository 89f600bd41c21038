"""The console shown to work: a real server under load, its console, and a real Chromium.

    .venv/bin/python -m benchmarks.operator_kit.console [--quick] [--screenshots docs/img/console]

Each view is opened with live load, light and dark, wide and on a phone; a drill is followed from
healthy over the finding and the guilty request to recovery; the server's engine is killed, the
server is restarted, and started again with a debug key; a limit is changed; and 5,000 requests are
searched. Exits with 1, and says what, when something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import Browser, Locator, Page, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from benchmarks.contract.common import Server, say
from benchmarks.operator_kit.console_browser import (
    PHONE,
    VIEWS,
    WIDE,
    Console,
    Failed,
    Seen,
    check_axe,
    check_width,
    chromium,
    look,
    require,
    tab,
    yield_cpu,
)
from benchmarks.operator_kit.console_load import (
    CULPRIT,
    FLAGS,
    VICTIM,
    Traffic,
    many_requests,
    slo_flags,
)

CALM_S = 45
FOUND_WITHIN_MS, RECOVERED_WITHIN_MS = 90_000, 120_000
SOON_MS = 45_000  # also on a machine that has other things to do
KEY = "a-key-that-is-nowhere-else"
MANY = 5_200
_SAID_CHARACTERS = 600  # of a browser's log, the first lines say it
INTERFERENCE = "Prefill interference"


async def check_views(browser: Browser, console: Console, seen: Seen) -> None:
    """Every view, four times, with what it must show under load."""
    shown = {
        "overview": "Step budget in force",
        "batch": VICTIM,
        "requests": VICTIM,
        "incidents": "Batch then",
        "latency": "per token",
        "limits": "max_num_seqs",
    }
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", PHONE), ("dark", PHONE)):
        async with tab(browser, seen, size, scheme) as page:
            for view, path in VIEWS.items():
                where = f"{view}, {scheme}, {size[0]} px"
                await look(page, console.url + path)
                await expect(page.locator("main")).to_contain_text(shown[view], timeout=SOON_MS)
                await check_axe(page, seen, where)
                await check_width(page, where)
    say("each view shows live data, light and dark, wide and on a phone")


async def check_it_lives(page: Page, console: Console) -> None:
    """What is shown changes by itself, and keys go where they should."""
    await look(page, console.url + "/batch")
    before = await page.locator("main caption").first.text_content()
    await expect(page.locator("main caption").first).not_to_have_text(before or "", timeout=SOON_MS)
    for key, path in (("3", "/requests"), ("5", "/latency"), ("1", "/")):
        await page.keyboard.press(key)
        await page.wait_for_url(f"{console.url}{path}", timeout=SOON_MS)
        await page.wait_for_selector("main h1")
    await page.keyboard.press("/")
    await page.wait_for_selector("#search:focus", timeout=SOON_MS)
    say("the batch moves on by itself, and views open by key")


async def require_healthy(verdict: Locator) -> None:
    """Before the fault. On a machine with other things to do the server rightly says so, and from
    a fault on top of that nothing can be told."""
    try:
        await expect(verdict).to_contain_text("Healthy", timeout=RECOVERED_WITHIN_MS)
    except AssertionError:
        said = await verdict.text_content()
        raise Failed(
            f"the server is not well before the fault: {said} Is the machine busy?"
        ) from None


async def follow_drill(page: Page, console: Console, traffic: Traffic, pictures: Pictures) -> None:
    """Healthy, finding, guilty request in two clicks, victim and back, recovery."""
    await look(page, console.url)
    verdict = page.locator(".verdict")
    await require_healthy(verdict)
    await pictures.take(page, "healthy")
    traffic.fault()
    guilty = page.locator(f".verdict a:has-text('{CULPRIT}-')").first
    await expect(guilty).to_be_visible(timeout=FOUND_WITHIN_MS)
    with contextlib.suppress(PlaywrightTimeout):  # a replay takes its time, and may say nothing
        await page.wait_for_selector(".verdict:has-text('What if')", timeout=40_000)
    await pictures.take(page, "finding")
    finding = await verdict.text_content()
    say(f"found: {finding}")
    await guilty.click()  # the alert's page was the first step, this is the second
    await page.wait_for_url(f"**/requests/{CULPRIT}-*", timeout=SOON_MS)
    await expect(page.locator("main")).to_contain_text("Whose time it took", timeout=SOON_MS)
    await pictures.take(page, "culprit")
    victim = page.locator(f"section:has-text('Whose time it took') a:has-text('{VICTIM}-')").first
    await expect(victim).to_be_visible(timeout=SOON_MS)
    await victim.click()
    await page.wait_for_url(f"**/requests/{VICTIM}-*", timeout=SOON_MS)
    back = page.locator(f"section:has-text('Who took its time') a:has-text('{CULPRIT}-')").first
    await expect(back).to_be_visible(timeout=SOON_MS)
    await page.locator(".pair").first.evaluate("one => one.scrollIntoView()")
    await pictures.take(page, "waterfall")
    await traffic.calm()
    await look(page, console.url)
    found = page.locator(f".finding:has-text('{INTERFERENCE}')")
    await expect(found).to_have_count(0, timeout=RECOVERED_WITHIN_MS)
    say(f"the finding is gone after the fault; now: {await verdict.text_content()}")
    await check_incident(page, console, pictures)


async def check_incident(page: Page, console: Console, pictures: Pictures) -> None:
    """The incident is listed, and the slider shows the server as it was in it."""
    await look(page, console.url + "/incidents")
    row = page.locator(f"table:has-text('Incidents, newest first') a:text-is('{INTERFERENCE}')")
    await row.first.click()
    then = page.locator(f".finding:has-text('{INTERFERENCE}')")
    await expect(then.first).to_be_visible(timeout=SOON_MS)
    await pictures.take(page, "incident")
    slider = page.locator("input[type=range]")
    await slider.focus()
    await slider.press("End")  # the right end is now
    await expect(page.locator("main .lead")).to_contain_text(", 0 s ago", timeout=SOON_MS)
    say("the incident is listed, and the slider goes back to it")


async def check_limits(page: Page, console: Console) -> None:
    """A limit is changed by the form, and a wrong one is refused with the server's reason."""
    await look(page, console.url + "/limits")
    await expect(page.locator("select[name=limit] option")).not_to_have_count(1, timeout=SOON_MS)
    await page.select_option("select[name=limit]", "max_num_seqs")
    await page.fill("input[name=value]", "12")
    await page.fill("input[name=why]", "shown to work")
    await page.click("form.change:not(.key) button")
    await expect(page.locator("main")).to_contain_text("max_num_seqs is in force", timeout=SOON_MS)
    await expect(page.locator("main")).to_contain_text("shown to work")
    await page.fill("input[name=value]", "0")
    await page.click("form.change:not(.key) button")
    await expect(page.locator("main")).to_contain_text("Not changed", timeout=SOON_MS)
    say("a limit is changed, and one that cannot be is refused with a reason")


async def check_recorder(browser: Browser, server: Server, seen: Seen) -> None:
    """A console that begins after the incident still shows it, from the flight recorder."""
    async with Console(f"http://127.0.0.1:{server.port}") as late, tab(browser, seen) as page:
        await look(page, late.url + "/incidents")
        rows = page.locator("table:has-text('Incidents, newest first') tbody tr")
        await expect(rows.first).to_be_visible(timeout=90_000)
    say("a console that is started later has the incident from the flight recorder")


async def check_engine_death(page: Page, console: Console, server: Server) -> None:
    await look(page, console.url)
    os.kill(server.engine_pid, signal.SIGKILL)
    await expect(page.locator("header .server, .server").first).to_contain_text(
        "engine restarts", timeout=60_000
    )
    await expect(page.locator(".server")).to_contain_text("ready", timeout=SOON_MS)
    await expect(page.locator(".server")).not_to_contain_text("not ready", timeout=60_000)
    say("the engine's death is shown, and its return")


class Keyed(Server):
    """The server again, on the same port, with a debug key."""

    def __init__(self, port: int) -> None:
        super().__init__(*FLAGS, "--debug-key", KEY)
        self.port = port

    async def snapshot(self) -> dict[str, Any]:
        return {"engine_pid": 0}  # it would take the key


async def check_restart(page: Page, console: Console, server: Server) -> None:
    """The server is gone, is back, and then wants a key."""
    await look(page, console.url)
    await server.__aexit__()
    notice = page.locator(".notice")
    await expect(notice.first).to_contain_text("No answer for", timeout=SOON_MS)
    await expect(page.locator("main")).to_contain_text("Step budget in force")
    async with Keyed(server.port):
        await expect(notice.first).to_contain_text("asks for its debug key", timeout=SOON_MS)
        await page.fill("input[name=debug-key]", "wrong")
        await page.click("form.key button")
        await expect(notice.first).to_contain_text("does not accept", timeout=SOON_MS)
        await page.fill("input[name=debug-key]", KEY)
        await page.keyboard.press("Enter")
        await expect(notice).to_have_count(0, timeout=60_000)
        await expect(page.locator(".server")).to_contain_text("ready")
    require(KEY not in console.said(), "the debug key is in the console's log")
    require("Traceback" not in console.said(), f"the console had an error: {console.said()}")
    say("a restart of the server and its debug key are survived")


async def check_many(browser: Browser, seen: Seen) -> None:
    """5,000 requests in the window: found by id, class and order, page by page."""
    server = Server("--model", "dummy:tiny", "--queue-limit", "64")
    url = f"http://127.0.0.1:{server.port}"
    async with server, Console(url) as console, tab(browser, seen) as page:
        await many_requests(server.port, MANY)
        await look(page, console.url + "/requests?order=slowest")
        lead = page.locator("main .lead")
        await expect(lead).to_contain_text(f"{MANY:,} requests", timeout=60_000)
        await page.click("nav.paging a:has-text('next')")
        await expect(page.locator("nav.paging")).to_contain_text("page 2 of", timeout=SOON_MS)
        rows = await page.locator("main tbody tr").count()
        require(rows == 50, f"a page has {rows} rows")
        await page.fill("#search", "many-4321")
        await page.keyboard.press("Enter")
        await expect(page.locator("main tbody tr")).to_have_count(1, timeout=SOON_MS)
        await page.click("main tbody th a")
        await expect(page.locator("main")).to_contain_text("Exact ledger", timeout=SOON_MS)
        await check_axe(page, seen, "one of many requests")
    say(f"{MANY:,} requests are searched page by page")


class Pictures:
    """Screenshots for the documentation; nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    async def take(self, page: Page, name: str) -> None:
        """What the window shows, in 128 colours: small, and text stays sharp."""
        if self._folder is None:
            return
        path = self._folder / f"{name}.png"
        with Image.open(io.BytesIO(await page.screenshot())) as picture:
            picture.convert("RGB").quantize(128).save(path, optimize=True)
        size_kb = path.stat().st_size / 1000
        require(size_kb < 150, f"{path} has {size_kb:.0f} kB")
        say(f"  picture {path} ({size_kb:.0f} kB)")


async def take_views(browser: Browser, console: Console, pictures: Pictures) -> None:
    """The views that the drill does not come by, and one on a phone in the dark."""
    quiet = Seen()
    async with tab(browser, quiet) as page:
        for view in ("batch", "requests", "latency", "limits"):
            await look(page, console.url + VIEWS[view])
            await page.wait_for_timeout(1500)
            await pictures.take(page, view)
    async with tab(browser, quiet, PHONE, "dark") as page:
        await look(page, console.url)
        await page.wait_for_timeout(1500)
        await pictures.take(page, "phone")


async def show(args: argparse.Namespace, folder: Path) -> None:
    seen, pictures = Seen(), Pictures(args.screenshots)
    flags = (*FLAGS, *slo_flags(folder))
    server = Server(*flags)
    async with chromium() as browser:
        async with server, Console(f"http://127.0.0.1:{server.port}") as console:
            traffic = Traffic(server.port)
            traffic.start()
            try:
                say(f"calm for {CALM_S} s, so that the server knows what is usual")
                await asyncio.sleep(CALM_S)
                async with tab(browser, seen) as page:
                    await follow_drill(page, console, traffic, pictures)
                    await check_it_lives(page, console)
                await take_views(browser, console, pictures)
                await check_views(browser, console, seen)
                await check_recorder(browser, server, seen)
                async with tab(browser, seen) as page:
                    await check_limits(page, console)
                    await check_engine_death(page, console, server)
                    await check_restart(page, console, server)
            finally:
                await traffic.stop()
        if not args.quick:
            await check_many(browser, seen)
    seen.check(KEY)
    say("no error in the browser's console, no request elsewhere, nothing serious by axe-core")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the 5,000 requests out")
    parser.add_argument("--screenshots", type=Path, metavar="DIR", help="write pictures there")
    args = parser.parse_args()
    yield_cpu()
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(show(args, Path(folder)))
    except (Failed, AssertionError) as error:
        say(f"does not hold: {str(error)[:_SAID_CHARACTERS]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
