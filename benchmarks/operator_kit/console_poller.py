"""The console's poller without its pages: what `console_cost` runs beside a server.

It polls as if a tab showed each view that asks for more than the others, and draws the overview
after each poll, as a tab makes the console do.
"""

from __future__ import annotations

import asyncio
import os
import sys

from dashboards.console.markup.overview import Overview, render
from dashboards.console.web.poller import WATCHED_S, Poller
from dashboards.monitor.client import Client
from telemetry.facts.clock import MonotonicClock

_NICE = 10  # as the console has it


async def poll(url: str) -> None:
    poller = Poller(Client(url), MonotonicClock())
    for view in ("overview", "batch", "limits"):
        poller.watchers.enter(view)
    task = asyncio.create_task(poller.run())
    while not task.done():
        await asyncio.sleep(WATCHED_S)
        known = poller.known
        if known.moment is not None:
            clock = known.clock(poller.clock.now_ns())
            render(Overview(known.moment, known.history, known.index, known.root, clock))


if __name__ == "__main__":
    os.nice(_NICE)
    asyncio.run(poll(sys.argv[1]))
