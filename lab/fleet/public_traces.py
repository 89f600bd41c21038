"""Recorded traces that others have published, as requests to a fleet.

The files are not in the repository; whoever runs them fetches them:

    mooncake   JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, one
               id for each 512 tokens of the prompt: equal ids are equal text below equal text
               (`FAST25-release/traces` of github.com/kvcache-ai/Mooncake; Qin et al., FAST 2025).
               `mooncake_synthetic` is its trace of public datasets, conversations and long
               documents that are asked about several times, which come by a Poisson process
    azure      CSV with TIMESTAMP, ContextTokens and GeneratedTokens; nothing is shared
               (`data/AzureLLMInferenceTrace_*.csv` of github.com/Azure/AzurePublicDataset; Patel
               et al., Splitwise, ISCA 2024)

Each request is a session of one turn that comes when the trace says, not when an answer has ended:
a later turn of a conversation is a later line, whose prompt repeats what came before.

A fleet has `copies` of the trace at the same time, each with texts of its own and begun at another
place of it, so that a larger fleet sees more users instead of the same ones in less time.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from lab.fleet.traffic import Session, Turn

BLOCK_TOKENS = 512
MAX_TOKENS = 2048
"""A client caps its outputs; no trace has a longer one."""
_FIRST_TOKEN = 50_000_000  # no token that a simulated engine says
_SECOND = 1_000_000_000


class PublicTrace(StrEnum):
    """Formats, by who published them."""

    MOONCAKE = "mooncake"
    MOONCAKE_SYNTHETIC = "mooncake_synthetic"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class Line:
    """One recorded request. `blocks` name the text of each `BLOCK_TOKENS` of its prompt."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedSession(Session):
    """A request whose text is known only by the names of its blocks."""

    blocks: tuple[int, ...] = ()

    def new_tokens(self, turn: int) -> list[int]:
        """The same token throughout a block, another one in each other block."""
        tokens = [_FIRST_TOKEN + block for block in self.blocks for _ in range(BLOCK_TOKENS)]
        return tokens[: self.turns[turn].new_tokens]


class TraceFileError(ValueError):
    """The file is not of the format; the message names the line."""


def read(trace: PublicTrace, path: Path) -> list[Line]:
    """All lines, in the order of their times. Raises TraceFileError, OSError."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = _azure(file) if trace is PublicTrace.AZURE else _mooncake(file)
        found, number = list[Line](), 0
        try:
            for line in reader:
                number += 1
                found.append(line)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{path}: request {number + 1} is not of the format {trace}: {error}"
            raise TraceFileError(message) from error
    return sorted(found, key=lambda line: line.at_s)


def _mooncake(file: Iterator[str]) -> Iterator[Line]:
    for text in file:
        row = json.loads(text)
        line = Line(
            row["timestamp"] / 1e3,
            int(row["input_length"]),
            int(row["output_length"]),
            tuple(row["hash_ids"]),
        )
        if not 0 < line.prompt_tokens <= len(line.blocks) * BLOCK_TOKENS:
            raise ValueError("the prompt has more tokens than its blocks")
        yield line


def _azure(file: Iterator[str]) -> Iterator[Line]:
    begin: datetime | None = None
    own = 0
    for row in csv.DictReader(file):
        at = datetime.fromisoformat(row["TIMESTAMP"][:26])
        begin = begin or at
        tokens = max(1, int(row["ContextTokens"]))
        count = -(-tokens // BLOCK_TOKENS)
        blocks = tuple(range(own, own + count))
        own += count
        yield Line((at - begin).total_seconds(), tokens, int(row["GeneratedTokens"]), blocks)


def sessions_of(
    lines: Sequence[Line], *, copies: int, rate_per_s: float, span_s: float
) -> tuple[Session, ...]:
    """What comes within `span_s` seconds when all copies together send `rate_per_s` requests a
    second, over the trace as a whole; bursts and lulls stay. Raises ValueError for fewer than two
    lines."""
    if len(lines) < 2:
        raise ValueError("a trace of at least two requests is needed")
    length_s = lines[-1].at_s - lines[0].at_s
    faster = rate_per_s / copies * length_s / len(lines)
    ids = 1 + max(block for line in lines for block in line.blocks)
    found = list[Session]()
    for copy in range(copies):
        offset_s = copy * length_s / copies
        for line in _from(lines, offset_s):
            at_s = ((line.at_s - lines[0].at_s - offset_s) % length_s) / faster
            if at_s >= span_s:
                break
            found.append(_session(line, at_s, copy * ids, len(found)))
    found.sort(key=lambda session: session.at_ns)
    return tuple(found)


def _from(lines: Sequence[Line], offset_s: float) -> list[Line]:
    """From a time of the trace to its end, then from its begin on."""
    first = next(n for n, line in enumerate(lines) if line.at_s - lines[0].at_s >= offset_s)
    return [*lines[first:-1], *lines[:first]]


def _session(line: Line, at_s: float, first_block: int, number: int) -> Session:
    outputs = min(max(1, line.output_tokens), MAX_TOKENS)
    return RecordedSession(
        at_ns=int(at_s * _SECOND),
        tenant="",
        prefix=(),
        turns=(Turn(line.prompt_tokens, outputs),),
        seed=number,
        max_tokens=MAX_TOKENS,
        blocks=tuple([first_block + block for block in line.blocks]),
    )


def shared_share(lines: Sequence[Line]) -> float:
    """The share of prompt blocks that a cache without limits would hold when they come."""
    seen, hits, total = set[int](), 0, 0
    for line in lines:
        total += len(line.blocks)
        new = [block not in seen for block in line.blocks]
        hits += new.index(True) if True in new else len(new)
        seen.update(line.blocks)
    return hits / total if total else 0.0
