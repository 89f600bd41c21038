"""Whether the console hears the server, in words that say what to do."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dashboards.console.model.moments import Moment

_KEY = (
    "Give the one that it was started with (--debug-key); it stays in the memory of this console."
)


class LinkState(StrEnum):
    """What the last poll found."""

    CONNECTING = "connecting"
    UP = "up"
    WANTS_KEY = "wants_key"
    DOWN = "down"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The last poll; `since_ns` (the console's clock) is when this state began, `why` the error."""

    state: LinkState = LinkState.CONNECTING
    since_ns: int = 0
    why: str = ""
    had_key: bool = False


class Notice(msgspec.Struct, frozen=True):
    """One line at the top of each page; `level` is warn or bad."""

    level: str
    text: str


def notices(link: Link, moment: Moment | None, now_ns: int, reading: str) -> list[Notice]:
    """What a person must know before they believe the page."""
    found: list[Notice] = []
    for_s = max(0, now_ns - link.since_ns) // 1_000_000_000
    match link.state:
        case LinkState.WANTS_KEY:
            wrong = "does not accept this debug key" if link.had_key else "asks for its debug key"
            found.append(Notice("bad", f"The server {wrong}. {_KEY}"))
        case LinkState.DOWN:
            old = "; what you see is from before" if moment is not None else ""
            found.append(Notice("bad", f"No answer for {for_s} s{old}. {link.why}. Trying on."))
        case LinkState.CONNECTING:
            found.append(Notice("warn", "Asking the server for the first time."))
        case LinkState.UP:
            found += _of_server(moment)
    if reading:
        found.append(Notice("warn", reading))
    return found


def _of_server(moment: Moment | None) -> list[Notice]:
    if moment is None:
        return []
    snapshot, found = moment.snapshot, []
    if not snapshot.ready:
        text = "The server is not ready: its engine is loading, has died or does not respond. "
        found.append(Notice("bad", text + "Requests are refused until it is back."))
    if not snapshot.recording:
        found.append(Notice("warn", "Recording is switched off: nothing new is measured."))
    for name in snapshot.folds_detached:
        text = f"Part {name} of the server's telemetry failed: what it shows is old."
        found.append(Notice("bad", text))
    return found
