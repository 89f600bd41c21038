"""Polls `/debug/diagnosis` twice a second and keeps the answers, and when the verdict changed."""

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


class PollSample(msgspec.Struct, kw_only=True):
    """One answer of the server, which `polls` polls from `at_ns` to `until_ns` have returned."""

    at_ns: int
    until_ns: int
    polls: int = msgspec.field(name="looks")
    answer: msgspec.Raw


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True):
    """A new verdict, `at_s` after the start of the traffic; `named` has the symptoms and
    confidences of its first three findings, `chain` the links of the first one's chain of causes.
    """

    at_s: float
    verdict: str
    named: tuple[tuple[str, float], ...] = ()
    onset_s: float | None = None
    chain: tuple[str, ...] = ()

    @property
    def top(self) -> str | None:
        """The first symptom; None without findings."""
        return self.named[0][0] if self.named else None


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions of `/debug/root`: `gains` of interventions, `promises` of findings."""

    requests: int
    moved: dict[str, tuple[float, float]]
    gains: list[dict[str, Any]]
    promises: dict[str, str]


class DiagnosisPoller:
    """Polls until it is cancelled; failed polls are left out."""

    def __init__(self, port: int, clock: Clock) -> None:
        self.samples: list[PollSample] = []
        self._port = port
        self._clock = clock

    async def run(self) -> None:
        while True:
            begin_ns = self._clock.now_ns()
            await self.poll()
            await asyncio.sleep(max(0.05, EVERY_S - (self._clock.now_ns() - begin_ns) / 1e9))

    async def poll(self) -> None:
        """Poll once."""
        try:
            status, body = await call(self._port, "GET", "/debug/diagnosis")
        except OSError:
            return
        if status == 200:
            self.take(body)

    def take(self, body: bytes) -> None:
        """Keep an answer that arrives now."""
        now_ns, answer = self._clock.now_ns(), msgspec.Raw(body)
        if self.samples and bytes(self.samples[-1].answer) == body:
            self.samples[-1].until_ns = now_ns
            self.samples[-1].polls += 1
            return
        self.samples.append(PollSample(at_ns=now_ns, until_ns=now_ns, polls=1, answer=answer))

    def save(self, path: Path) -> None:
        """Write the samples as JSON lines."""
        path.write_bytes(b"".join(msgspec.json.encode(sample) + b"\n" for sample in self.samples))


async def root_of(port: int) -> Root | None:
    """The answer of `/debug/root`, None while it has no explanation."""
    with contextlib.suppress(OSError):
        status, body = await call(port, "GET", "/debug/root")
        decoded: dict[str, Any] = msgspec.json.decode(body) if status == 200 else {}
        found = decoded.get("explanation")
        if found is not None:
            return Root(
                requests=found["requests"],
                moved=found["moved"],
                gains=found["gains"],
                promises=decoded["promises"],
            )
    return None


def timeline(samples: Sequence[PollSample], begin_ns: int) -> list[VerdictChange]:
    """Changes of the verdict, of the class that is named first, or of its chain."""
    found: list[VerdictChange] = []
    for sample in samples:
        change = _verdict_change(sample, begin_ns)
        if not found or _answer(change) != _answer(found[-1]):
            found.append(change)
    return found


def _answer(change: VerdictChange) -> tuple[str, str | None, tuple[str, ...]]:
    return change.verdict, change.top, change.chain


def _verdict_change(sample: PollSample, begin_ns: int) -> VerdictChange:
    decoded: dict[str, Any] = msgspec.json.decode(sample.answer)
    findings = decoded.get("findings") or []
    named = tuple((str(one["symptom"]), round(one["confidence"], 3)) for one in findings[:_NAMED])
    onset_ns = decoded.get("onset_ns")
    return VerdictChange(
        at_s=round((sample.at_ns - begin_ns) / 1e9, 2),
        verdict=decoded.get("verdict") or ("fault" if named else "healthy"),
        named=named,
        onset_s=None if onset_ns is None else round((onset_ns - begin_ns) / 1e9, 2),
        chain=_chain_of(findings[0]) if findings else (),
    )


def _chain_of(finding: dict[str, Any]) -> tuple[str, ...]:
    """The links of a finding's chain of causes, first link first; a link is a name, or has one."""
    links = finding.get("chain") or ()
    names = (
        one if isinstance(one, str) else one.get("symptom") or one.get("name") for one in links
    )
    return tuple(str(name) for name in names if name)
