"""Completions sent to an engine at a steady rate, from a seed: what the recordings are made of."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import httpx

_WORDS = [
    "river", "stone", "light", "garden", "winter", "letter", "music", "window", "silver",
    "mountain", "paper", "road", "morning", "shadow", "water", "market", "bridge", "forest",
]  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """`rate` requests a second for `seconds`: `prompt` words of which the first `shared` are those
    of everybody, `output` tokens each. `label` is what is wrong, empty where nothing is."""

    label: str
    seconds: float
    rate: float
    prompt: int = 60
    shared: int = 0
    output: int = 24
    long_rate: float = 0.0
    long_prompt: int = 1500


class Traffic:
    """Open arrivals (Poisson), so that a slow engine gets no fewer requests."""

    def __init__(self, url: str, path: str, seed: int, body: dict[str, object]) -> None:
        self._url, self._path, self._body = url, path, body
        self._random = random.Random(seed)
        self._shared = self._words(2000)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(600))
        self.answers: list[dict[str, object]] = []
        self.failed = 0

    async def run(self, phase: Phase) -> None:
        """Send for the time of the phase, and wait for its last answer."""
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            short = self._send(phase, phase.rate, phase.prompt, phase.shared, tasks)
            long = self._send(phase, phase.long_rate, phase.long_prompt, 0, tasks)
            group.create_task(short)
            group.create_task(long)
        await asyncio.gather(*tasks)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(
        self, phase: Phase, rate: float, prompt: int, shared: int, tasks: list[asyncio.Task[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + phase.seconds
        while rate and loop.time() < end:
            words = self._shared[:shared] + self._words(prompt - shared)
            tasks.append(asyncio.create_task(self._one(" ".join(words), phase.output)))
            await asyncio.sleep(self._random.expovariate(rate))

    async def _one(self, prompt: str, output: int) -> None:
        body = {**self._body, "prompt": prompt, "max_tokens": output}
        try:
            answer = await self._client.post(self._url + self._path, json=body)
            answer.raise_for_status()
            self.answers.append(answer.json())
        except httpx.HTTPError:
            self.failed += 1

    def _words(self, count: int) -> list[str]:
        return [self._random.choice(_WORDS) for _ in range(count)]
