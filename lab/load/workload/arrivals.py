"""Arrival times of requests. Offsets are nanoseconds from the start of the run.

An open loop never looks at replies: its offsets are a function of the seed alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.load.spec import BenchSpec, Interval, Poisson, Trace, Users
from service.config.settings import ConfigError

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Due:
    """One arrival: its time, its class (by index), and its lengths if they come from a trace."""

    offset_ns: int
    class_index: int
    lengths: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """One source of arrivals and the classes that share it, with their weights."""

    number: int
    arrivals: Poisson | Interval | Trace | Users
    classes: tuple[int, ...]
    weights: tuple[float, ...]

    def pick(self, rng: np.random.Generator) -> int:
        """The class of the next request, by weight."""
        if len(self.classes) == 1:
            return self.classes[0]
        shares = np.cumsum(self.weights)
        return self.classes[int(np.searchsorted(shares, rng.random() * shares[-1], "right"))]


def streams_of(spec: BenchSpec) -> list[Stream]:
    """A stream for each class with arrivals of its own, and one for all others together."""
    found: list[Stream] = []
    for index, one in enumerate(spec.classes):
        if one.arrivals is not None:
            found.append(Stream(len(found), one.arrivals, (index,), (one.weight,)))
    sharing = [index for index, one in enumerate(spec.classes) if one.arrivals is None]
    if sharing and spec.arrivals is not None:
        weights = tuple(spec.classes[index].weight for index in sharing)
        found.append(Stream(len(found), spec.arrivals, tuple(sharing), weights))
    return found


def stream_rng(seed: int, stream: Stream) -> np.random.Generator:
    """Independent of every other stream of the same seed."""
    return np.random.default_rng([seed, 1, stream.number])


def due_times(stream: Stream, spec: BenchSpec) -> Iterator[Due]:
    """The arrivals of an open stream, in time order; endless unless they come from a trace."""
    rng = stream_rng(spec.seed, stream)
    match stream.arrivals:
        case Poisson(rate_per_s, burst):
            offsets_ns = _poisson_ns(rng, rate_per_s / burst)
        case Interval(interval_s, burst):
            offsets_ns = (round(n * interval_s * 1e9) for n in itertools.count(1))
        case Trace(path):
            yield from _trace_dues(Path(path), stream, spec, rng)
            return
        case Users():
            raise AssertionError("a closed loop has no arrival times")
    for offset_ns in offsets_ns:
        for _ in range(burst):
            yield Due(offset_ns, stream.pick(rng))


def _poisson_ns(rng: np.random.Generator, rate_per_s: float) -> Iterator[int]:
    at_s = 0.0
    while True:
        for gap_s in rng.exponential(1 / rate_per_s, _BATCH):
            at_s += float(gap_s)
            yield round(at_s * 1e9)


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line of a trace; `class_name` None goes to the classes that share it, by weight."""

    offset_ns: int
    prompt_tokens: int
    output_tokens: int
    class_name: str | None


def read_trace(path: Path) -> list[TraceEntry]:
    """JSON lines with `at_ms`, `prompt_tokens`, `max_tokens` and optionally `class`.

    The format of `phasescope drill --sim FILE`. Raises ConfigError with the line that is wrong.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    entries: list[TraceEntry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            name = found.get("class")
            entry = TraceEntry(
                round(float(found["at_ms"]) * 1e6),
                int(found["prompt_tokens"]),
                int(found["max_tokens"]),
                None if name is None else str(name),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ConfigError(
                f"{path}:{number}: write "
                '{"at_ms": 0, "prompt_tokens": 64, "max_tokens": 32, "class": "chat"} '
                f"({type(error).__name__}: {error})"
            ) from error
        if min(entry.prompt_tokens, entry.output_tokens) < 1 or entry.offset_ns < 0:
            raise ConfigError(f"{path}:{number}: lengths must be at least 1 and at_ms at least 0")
        entries.append(entry)
    if not entries:
        raise ConfigError(f"{path}: the trace has no arrivals")
    return sorted(entries, key=lambda entry: entry.offset_ns)


def _trace_dues(
    path: Path, stream: Stream, spec: BenchSpec, rng: np.random.Generator
) -> Iterator[Due]:
    by_name = {spec.classes[index].name: index for index in stream.classes}
    for entry in read_trace(path):
        if entry.class_name is not None and entry.class_name not in by_name:
            raise ConfigError(
                f"{path}: class {entry.class_name!r} is not declared; add --class "
                f"{entry.class_name}:weight=1 or leave the class out"
            )
        name = entry.class_name
        index = stream.pick(rng) if name is None else by_name[name]
        yield Due(entry.offset_ns, index, (entry.prompt_tokens, entry.output_tokens))
