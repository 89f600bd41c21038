"""What a file is parsed into: requests, steps, or scrapes; and what is asked of any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from diagnosis.importers.kinds import Seen
from diagnosis.importers.quantities import Imported


class Span(NamedTuple):
    """Half-open, of the record's own clock in ns."""

    begin_ns: int
    end_ns: int


def joined(spans: Iterable[Span]) -> list[Span]:
    """In order, those that touch as one."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.begin_ns <= found[-1].end_ns:
            found[-1] = Span(found[-1].begin_ns, max(found[-1].end_ns, span.end_ns))
        else:
            found.append(span)
    return found


Measures = dict[Imported, float]
"""Quantities of some spans; one that was not measured is not in it."""


class RequestSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that ended. Times are None where its engine does not say them; `at_ns` is when it
    came, or its number where that is unknown."""

    at_ns: int
    front_ns: int | None = None
    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    preempted: int | None = None
    failed: bool = False

    @property
    def token_ns(self) -> float | None:
        """Per output token after the first."""
        if self.decode_ns is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return self.decode_ns / (self.output_tokens - 1)

    @property
    def first_ns(self) -> int | None:
        """When its first token came; None where a part before it is unknown."""
        if self.queue_ns is None or self.prefill_ns is None:
            return None
        return self.at_ns + (self.front_ns or 0) + self.queue_ns + self.prefill_ns

    @property
    def end_ns(self) -> int:
        """When its last token came, as far as its parts are known."""
        parts = (self.front_ns, self.queue_ns, self.prefill_ns, self.decode_ns)
        return self.at_ns + sum(part or 0 for part in parts)


class StepSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One forward pass, with sums over its rows. `number` counts the records of a worker, from
    wherever it began."""

    at_ns: int
    length_ns: int
    prompt_rows: int
    prompt_tokens: int
    decode_rows: int
    waiting: int
    preempted: int
    worker: str = ""
    number: int | None = None
    device_ns: int | None = None
    kv_usage: float | None = None


class Scrape(msgspec.Struct, frozen=True, gc=False):
    """Values of metrics at a time. Counters of one name are summed over engines; a gauge of a share
    is the largest of them. It had `samples` lines with one of them."""

    at_ns: int
    values: dict[str, float]
    samples: int


class Record(Protocol):
    """What the judge asks. `noun` is what it is made of, `unit` what its time is in."""

    noun: str
    unit: str
    count: int
    seen: frozenset[Seen]

    @property
    def span(self) -> Span:
        """From its first to its last moment."""
        ...

    def ticks(self) -> list[Span]:
        """Pieces of about the same length, in order."""
        ...

    def measure(self, spans: Sequence[Span]) -> Measures:
        """Quantities of these spans together."""
        ...

    def explained(self, now: Sequence[Span], usual: Sequence[Span]) -> Measures:
        """How much of the change in the time per output token, in ms, goes with others' prompts and
        with fuller batches; nothing where that cannot be told."""
        ...
