"""The one poller of a console: it asks the server as little as the open tabs need.

Once a second while a tab is open, else every five; what only one view shows is asked for while a
tab shows it. An answer that does not come changes the link, and nothing that is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from dashboards.console.model.link import Link, LinkState
from dashboards.console.model.moments import Moment
from dashboards.console.model.whatif import root_answer
from dashboards.console.web.state import Known, Watchers
from dashboards.explain import Explained
from dashboards.monitor.client import Client, Unreachable
from telemetry.facts.clock import Clock, read_wall_anchor

log = logging.getLogger("phasescope.console")

WATCHED_S, UNWATCHED_S = 1.0, 5.0
_SLOW_EVERY_NS = 5_000_000_000  # root cause and limits change seldom
_PAGE, _PAGES_AT_ONCE = 500, 4
_BATCH_ROWS = 256

T = TypeVar("T")


class Poller:
    """`known` is what it has found; `on_first` is called once, when the server first answers.
    `may_change` says whether limits may be changed from this console."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        on_first: Callable[[], None] = lambda: None,
        may_change: bool = True,
    ) -> None:
        self.known = Known()
        self.watchers = Watchers()
        self.client = client
        self.clock = clock
        self.may_change = may_change
        self._on_first = on_first
        self._asked_ns: dict[str, int] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.poll()
            except Exception:
                log.exception("the console goes on after an error")
            self._wake.clear()
            wait_s = WATCHED_S if self.watchers.any() else UNWATCHED_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def wake(self) -> None:
        """Poll now: a tab was opened, or a key was given."""
        self._wake.set()

    def use_key(self, debug_key: str) -> None:
        """The debug key that a person gave: of all tabs, so only while the server wants one. It is
        kept in memory only."""
        if self.known.link.state is not LinkState.WANTS_KEY:
            return
        self.client = Client(self.client.url, debug_key)
        self.wake()

    async def poll(self) -> None:
        """Ask once."""
        try:
            await self._ask_all()
        except Unreachable as error:
            self._link(error)
        else:
            self._link(None)
        self.known.version += 1

    async def explained(self, request_id: str) -> Explained:
        """One request. Raises Unreachable."""
        return await self._ask(lambda: self.client.explained(request_id))

    async def set_limit(self, name: str, value: Any, why: str) -> None:
        """Raises Unreachable, with the server's reason."""
        change = {name: value, "why": why, "by": "console"}
        self.known.limits = await self._ask(lambda: self.client.set_limits(change))
        self.known.limits_error = ""
        self.known.version += 1

    async def _ask_all(self) -> None:
        known, client = self.known, self.client
        snapshot = await self._ask(client.snapshot)
        known.offset_ns = read_wall_anchor().unix_ns - snapshot.at_ns
        known.lag_ns = snapshot.at_ns - self.clock.now_ns()
        diagnosis = await self._ask(client.diagnosis)
        is_first = known.moment is None
        known.history.add(Moment(snapshot, diagnosis))
        await self._ask_requests()
        if self.watchers.any("batch"):
            known.batch = await self._ask(lambda: client.batch(_BATCH_ROWS))
        await self._ask_slow(bool(diagnosis.findings))
        if is_first:
            self._on_first()

    async def _ask_requests(self) -> None:
        """What is new since the last time; the first times, a page after the other."""
        for _ in range(_PAGES_AT_ONCE):
            since = self.known.index.next
            page = await self._ask(partial(self.client.requests, since, _PAGE))
            if self.known.index.take(page) and len(page.requests) < _PAGE:
                return

    async def _ask_slow(self, is_wrong: bool) -> None:
        known = self.known
        if not is_wrong:
            known.root = None
        elif self._is_due("root"):
            try:
                known.root = root_answer(await self._ask(self.client.root))
            except msgspec.ValidationError as error:
                log.warning("the root cause cannot be read: %s", error)
        if self.watchers.any("limits") and self._is_due("limits"):
            try:
                known.limits, known.limits_error = await self._ask(self.client.limits), ""
            except Unreachable as error:  # there are none without an engine
                known.limits_error = str(error)

    def _is_due(self, what: str) -> bool:
        """Whether it was last asked for long enough ago; from now on it counts as asked."""
        now_ns = self.clock.now_ns()
        last_ns = self._asked_ns.get(what)
        if last_ns is not None and now_ns - last_ns < _SLOW_EVERY_NS:
            return False
        self._asked_ns[what] = now_ns
        return True

    def _link(self, error: Unreachable | None) -> None:
        """What the last poll says of the link; a state lasts since it began."""
        old = self.known.link
        state, why = LinkState.UP, ""
        if error is not None:
            state = LinkState.WANTS_KEY if error.status == 401 else LinkState.DOWN
            why = str(error)
        since_ns = old.since_ns if old.state is state else self.clock.now_ns()
        self.known.link = Link(
            state=state, since_ns=since_ns, why=why, had_key=bool(self.client.debug_key)
        )

    @staticmethod
    async def _ask(call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)
