"""What the server said of itself, asked twice a second, kept as it was said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.drills.servers import call
from telemetry.facts.clock import Clock

EVERY_S = 0.5
_NAMED = 3


class Look(msgspec.Struct, kw_only=True):
    """One answer, and until when it stayed the same."""

    at_ns: int
    until_ns: int
    looks: int
    answer: msgspec.Raw


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """From `at_s` of the traffic on the verdict was this; `named` has the first findings with
    their confidence."""

    at_s: float
    verdict: str
    named: tuple[tuple[str, float], ...] = ()
    onset_s: float | None = None

    @property
    def top(self) -> str | None:
        """The class that is named first, None where nothing is."""
        return self.named[0][0] if self.named else None


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """What `/debug/root` promised: `gains` are of interventions, `promises` of findings."""

    requests: int
    moved: dict[str, tuple[float, float]]
    gains: list[dict[str, Any]]
    promises: dict[str, str]


class Watch:
    """Asks until it is cancelled. An answer that does not come is no answer."""

    def __init__(self, port: int, clock: Clock) -> None:
        self.looks: list[Look] = []
        self._port = port
        self._clock = clock

    async def run(self) -> None:
        while True:
            begin_ns = self._clock.now_ns()
            await self.look()
            await asyncio.sleep(max(0.05, EVERY_S - (self._clock.now_ns() - begin_ns) / 1e9))

    async def look(self) -> None:
        """Ask once."""
        try:
            status, body = await call(self._port, "GET", "/debug/diagnosis")
        except OSError:
            return
        if status == 200:
            self.take(body)

    def take(self, body: bytes) -> None:
        """An answer that came now."""
        now_ns, answer = self._clock.now_ns(), msgspec.Raw(body)
        if self.looks and bytes(self.looks[-1].answer) == body:
            self.looks[-1].until_ns = now_ns
            self.looks[-1].looks += 1
            return
        self.looks.append(Look(at_ns=now_ns, until_ns=now_ns, looks=1, answer=answer))

    def save(self, path: Path) -> None:
        """A line each."""
        path.write_bytes(b"".join(msgspec.json.encode(look) + b"\n" for look in self.looks))


async def root_of(port: int) -> Root | None:
    """Ask once; None while nothing was found."""
    with contextlib.suppress(OSError):
        status, body = await call(port, "GET", "/debug/root")
        said: dict[str, Any] = msgspec.json.decode(body) if status == 200 else {}
        found = said.get("explanation")
        if found is not None:
            return Root(
                requests=found["requests"],
                moved=found["moved"],
                gains=found["gains"],
                promises=said["promises"],
            )
    return None


def timeline(looks: Sequence[Look], begin_ns: int) -> list[Turn]:
    """Only what changed: the verdict, or the class that is named first."""
    found: list[Turn] = []
    for look in looks:
        turn = _turn(look, begin_ns)
        if not found or (turn.verdict, turn.top) != (found[-1].verdict, found[-1].top):
            found.append(turn)
    return found


def _turn(look: Look, begin_ns: int) -> Turn:
    said: dict[str, Any] = msgspec.json.decode(look.answer)
    findings = said.get("findings") or []
    named = tuple((str(one["symptom"]), round(one["confidence"], 3)) for one in findings[:_NAMED])
    onset_ns = said.get("onset_ns")
    return Turn(
        at_s=round((look.at_ns - begin_ns) / 1e9, 2),
        verdict=said.get("verdict") or ("fault" if named else "healthy"),
        named=named,
        onset_s=None if onset_ns is None else round((onset_ns - begin_ns) / 1e9, 2),
    )
