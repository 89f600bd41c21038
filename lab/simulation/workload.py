"""Seeded arrivals for the simulated world.

Lengths are token counts, times are nanoseconds from the start. The ShareGPT-like lengths
are drawn between published quantiles of that data set (prompt median about 40 tokens with
a tail beyond 500, output median about 200), scaled to the world's context.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from service.config.settings import ConfigError

_VOCAB = 1000
_MS = 1_000_000
_SHAREGPT_PROMPT = (4, 12, 24, 40, 80, 180, 420, 900)
_SHAREGPT_OUTPUT = (8, 60, 130, 200, 290, 400, 520, 800)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of one client. Times after `at_ns` are relative to it, None is never.

    The output number `eos_at` is an end token of it. Targets are those of its SLO class.
    """

    at_ns: int
    prompt: tuple[int, ...]
    max_tokens: int
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    cache_prefix: bool = True
    deadline_ns: int | None = None
    cancel_ns: int | None = None
    pause_ns: int | None = None
    resume_ns: int | None = None
    grammar_ns: int | None = None
    grammar_refused: bool = False
    eos_at: int | None = None
    min_tokens: int = 0
    ttft_target_ns: int | None = None
    itl_target_ns: int | None = None
    adapter: str = ""

    @property
    def may_lose_its_place(self) -> bool:
        """Whether others may pass it in the queue: its grammar is compiled, its adapter is
        loaded, or it pauses."""
        return self.grammar_ns is not None or bool(self.adapter) or self.pause_ns is not None


@dataclass(frozen=True, slots=True)
class SimClass:
    """An SLO class of the simulated world, whose steps take 20 ms and more."""

    ttft_ns: int
    itl_ns: int


SIM_CLASSES = {
    "voice": SimClass(150 * _MS, 45 * _MS),
    "code": SimClass(400 * _MS, 60 * _MS),
    "chat": SimClass(1000 * _MS, 100 * _MS),
    "batch": SimClass(20_000 * _MS, 1000 * _MS),
}


@dataclass(slots=True)
class Mix:
    """Lengths, tenants, SLO classes and shared prefixes of arrivals; every choice comes from
    `random`. Without `classes` no arrival has a target."""

    random: Random
    max_model_tokens: int
    tenants: tuple[str, ...] = ("",)
    lengths: Callable[[Random, int], tuple[int, int]] = field(default=lambda r, n: uniform(r, n))
    shared_prefixes: tuple[tuple[int, ...], ...] = ()
    classes: tuple[str, ...] = ()

    def arrival(self, at_ns: int) -> Arrival:
        prompt_tokens, max_tokens = self.lengths(self.random, self.max_model_tokens)
        prompt = [self.random.randrange(_VOCAB) for _ in range(prompt_tokens)]
        if self.shared_prefixes:
            shared = self.random.choice(self.shared_prefixes)
            prompt = [*shared, *prompt][: self.max_model_tokens - 2]
        max_tokens = min(max_tokens, self.max_model_tokens - len(prompt))
        slo = SIM_CLASSES[self.random.choice(self.classes)] if self.classes else None
        return Arrival(
            at_ns=at_ns,
            prompt=tuple(prompt),
            max_tokens=max(1, max_tokens),
            tenant=self.random.choice(self.tenants),
            ttft_target_ns=None if slo is None else slo.ttft_ns,
            itl_target_ns=None if slo is None else slo.itl_ns,
        )


def uniform(random: Random, max_model_tokens: int) -> tuple[int, int]:
    """Prompt and output of any length that fits."""
    prompt = random.randint(1, max_model_tokens * 2 // 3)
    return prompt, random.randint(1, max_model_tokens - prompt)


def sharegpt(random: Random, max_model_tokens: int) -> tuple[int, int]:
    """Conversation-like lengths: short prompts, long outputs, both with a tail."""
    scale = max_model_tokens / (_SHAREGPT_PROMPT[-1] + _SHAREGPT_OUTPUT[-1])
    prompt = _between(random, _SHAREGPT_PROMPT) * scale
    output = _between(random, _SHAREGPT_OUTPUT) * scale
    return max(1, int(prompt)), max(1, int(output))


def long_tail(random: Random, max_model_tokens: int) -> tuple[int, int]:
    """Most are tiny; a few take most of the context (Pareto, shape 1.1)."""
    prompt = min(int(2 * random.paretovariate(1.1)), max_model_tokens - 4)
    output = min(int(2 * random.paretovariate(1.1)), max_model_tokens - prompt - 1)
    return max(1, prompt), max(1, output)


def _between(random: Random, quantiles: tuple[int, ...]) -> float:
    place = random.random() * (len(quantiles) - 1)
    below = int(place)
    return quantiles[below] + (quantiles[below + 1] - quantiles[below]) * (place - below)


def poisson(mix: Mix, count: int, rate_per_s: float) -> list[Arrival]:
    """`count` arrivals, independent of each other."""
    arrivals: list[Arrival] = []
    at_ns = 0
    for _ in range(count):
        at_ns += int(mix.random.expovariate(rate_per_s) * 1e9)
        arrivals.append(mix.arrival(at_ns))
    return arrivals


def bursts(mix: Mix, count: int, size: int, pause_ns: int) -> list[Arrival]:
    """Groups of `size` at the same instant, `pause_ns` apart."""
    return [mix.arrival(index // size * pause_ns) for index in range(count)]


def prefixes(random: Random, count: int, tokens: int) -> tuple[tuple[int, ...], ...]:
    """`count` different beginnings of `tokens` tokens."""
    return tuple(tuple(random.randrange(_VOCAB) for _ in range(tokens)) for _ in range(count))


def read_trace(path: Path, random: Random, max_model_tokens: int) -> list[Arrival]:
    """Arrivals from JSON lines with `at_ms`, `prompt_tokens`, `max_tokens` and optionally
    `tenant` and `priority`. Raises ConfigError with the line that is wrong."""
    arrivals: list[Arrival] = []
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt_tokens, max_tokens = int(entry["prompt_tokens"]), int(entry["max_tokens"])
            at_ns = round(float(entry["at_ms"]) * 1e6)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: not an arrival: {error}") from error
        if prompt_tokens < 1 or max_tokens < 1 or prompt_tokens + max_tokens > max_model_tokens:
            raise ConfigError(f"{path}:{number}: does not fit a context of {max_model_tokens}")
        arrivals.append(
            Arrival(
                at_ns=at_ns,
                prompt=tuple(random.randrange(_VOCAB) for _ in range(prompt_tokens)),
                max_tokens=max_tokens,
                tenant=str(entry.get("tenant", "")),
                priority=int(entry.get("priority", 0)),
            )
        )
    return sorted(arrivals, key=lambda arrival: arrival.at_ns)
