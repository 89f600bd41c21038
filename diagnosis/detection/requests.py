"""Requests as the tally knows them: in which stage each is, since when, and whose sequences.

Stages are phases put together, with the borders that `telemetry.requests.phases` defines:

    INGEST    accept, parse, tokenize
    FIRST     queue, prefill
    DECODE    decode
    DELIVER   detokenize, deliver

What is known here of a request that lives is when its first token was committed. That is not its
TTFT, which ends when the token is sent, and is called by another name.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnosis.detection.counts import Counts, Stage, add_live
from telemetry.facts.engine_records import SequencesListed
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.requests.phases import decode_begins_ns, first_commit_ns

_KEPT = 4_000
_KEPT_OPEN = 16_000
_KEPT_SEQUENCES = 8_000
# an abort takes a step or two to get through
_ABORT_NS = 150_000_000


@dataclass(slots=True)
class _Life:
    request_id: str
    trace_id: str
    tenant: str
    begun_ns: int
    stage: Stage
    entered_ns: int
    read_ns: int
    choices: int = 1
    sequences: set[int] = field(default_factory=set)
    firsts_ns: dict[int, int | None] = field(default_factory=dict)  # by sequence
    last_ns: int | None = None
    left_ns: int | None = None
    ended: bool = False


class Sufferer(NamedTuple):
    """A request that was there, and since when to when."""

    request_id: str
    trace_id: str
    tenant: str
    lived_ns: int


class Requests:
    """Files requests' time under the half seconds that `counts_at` gives."""

    def __init__(self, counts_at: Callable[[int], Counts]) -> None:
        self._at = counts_at
        self._lives: OrderedDict[str, _Life] = OrderedDict()
        self._open: dict[str, _Life] = {}
        self._owners: dict[int, _Life] = {}

    def accepted(self, fact: RequestAccepted) -> None:
        life = _Life(
            request_id=fact.request_id,
            trace_id=fact.trace_id,
            tenant=fact.tenant,
            begun_ns=fact.at_ns,
            stage=Stage.INGEST,
            entered_ns=fact.at_ns,
            read_ns=fact.at_ns if fact.read_ns is None else fact.read_ns,
        )
        self._lives[fact.request_id] = self._open[fact.request_id] = life
        if len(self._lives) > _KEPT:
            self._lives.popitem(last=False)
        if len(self._open) > _KEPT_OPEN:
            del self._open[next(iter(self._open))]
        self._at(fact.at_ns).accepted += 1

    def parsed(self, fact: RequestParsed) -> None:
        life = self._open.get(fact.request_id)
        if life is not None:
            life.choices = fact.choices

    def tokenized(self, fact: RequestTokenized) -> None:
        life = self._open.get(fact.request_id)
        if life is not None:
            self._at(fact.at_ns).ingest_work_ns += max(0, fact.at_ns - life.read_ns)
            self._enter(life, Stage.FIRST, fact.at_ns)

    def submitted(self, fact: SequenceSubmitted) -> None:
        life = self._open.get(fact.request_id)
        if life is None:
            return
        is_first = not life.firsts_ns
        life.sequences.add(fact.seq_id)
        life.firsts_ns[fact.seq_id] = None
        self._owners[fact.seq_id] = life
        if len(self._owners) > _KEPT_SEQUENCES:
            del self._owners[next(iter(self._owners))]
        if life.stage is Stage.INGEST:
            self._enter(life, Stage.FIRST, fact.at_ns)
        if is_first:
            counts = self._at(fact.at_ns)
            counts.requests += 1
            counts.choices_asked.append(life.choices)
            counts.tenant_requests[life.tenant] += 1

    def ended(self, fact: RequestEnded) -> None:
        counts = self._at(fact.at_ns)
        counts.ended[fact.reason] += 1
        if fact.output_valid is not None:
            counts.judged += 1
            counts.invalid += not fact.output_valid
        life = self._open.pop(fact.request_id, None)
        if life is None:
            return
        self._leave(life, fact.at_ns)
        life.ended = True
        if life.stage is Stage.INGEST:  # refused: for its length, perhaps
            counts.ingest_work_ns += max(0, fact.at_ns - life.read_ns)
        if life.stage is Stage.DELIVER:
            counts.delivered += 1
        if fact.reason.outcome is Outcome.CANCELLED:
            life.left_ns = fact.at_ns if fact.detected_ns is None else fact.detected_ns

    def sampled(self, seq_id: int, tokens: int, at_ns: int) -> None:
        """A sequence got tokens."""
        life = self._owners.get(seq_id)
        if life is None or life.ended:
            return
        counts = self._at(at_ns)
        life.last_ns = at_ns
        if life.stage is Stage.FIRST:
            tokens -= self._first_token(life, seq_id, at_ns)
        if life.stage is Stage.DECODE:
            counts.later_tokens += tokens / life.choices

    def _first_token(self, life: _Life, seq_id: int, at_ns: int) -> bool:
        """Whether it is the sequence's first. With that of the last sequence decode begins."""
        if life.firsts_ns.get(seq_id) is not None:
            return False
        counts = self._at(at_ns)
        if first_commit_ns(life.firsts_ns.values()) is None:
            late = math.log(max(1, at_ns - life.begun_ns))
            counts.first_commit_logs.append((life.tenant, late))
        life.firsts_ns[seq_id] = at_ns
        begins_ns = decode_begins_ns(life.firsts_ns.values())
        if begins_ns is not None:
            self._enter(life, Stage.DECODE, begins_ns)
            counts.first_tokens += 1
        return True

    def sequence_ended(self, seq_id: int, reason: EndReason, at_ns: int) -> None:
        """What follows the last token is delivery, unless nobody waits for it any more."""
        life = self._owners.get(seq_id)
        if life is None:
            return
        life.sequences.discard(seq_id)
        is_whole = life.stage is Stage.DECODE and reason.outcome is Outcome.FINISHED
        if is_whole and not life.sequences and not life.ended:
            self._enter(life, Stage.DELIVER, at_ns if life.last_ns is None else life.last_ns)

    def listed(self, fact: RequestsListed) -> None:
        """Who is over and lost its end waits for nothing. When it ended is not known, so the time
        in its last stage is filed nowhere."""
        listed_ids = frozenset(fact.request_ids)
        for request_id, life in list(self._open.items()):
            if life.read_ns < fact.at_ns and request_id not in listed_ids:
                del self._open[request_id]
                life.ended = True

    def sequences_listed(self, fact: SequencesListed) -> None:
        """Sequences that are over and lost their ends. Of the time in the stage that was lost with
        it none is filed."""
        for seq_id in fact.over([s for s, life in self._owners.items() if s in life.sequences]):
            life = self._owners[seq_id]
            life.sequences.discard(seq_id)
            if not life.sequences and not life.ended:
                life.stage, life.entered_ns = Stage.DELIVER, fact.at_ns

    @property
    def live(self) -> int:
        """Requests of which no end is known."""
        return len(self._open)

    def is_gone(self, seq_id: int, at_ns: int) -> bool:
        """Whether the sequence's client had left for long enough to stop it."""
        life = self._owners.get(seq_id)
        if life is None or life.left_ns is None:
            return False
        return at_ns > life.left_ns + _ABORT_NS

    def owner(self, seq_id: int) -> str:
        """The request that a sequence belongs to, as far as that is known."""
        life = self._owners.get(seq_id)
        return f"seq-{seq_id}" if life is None else life.request_id

    def lived(self, begin_ns: int, end_ns: int) -> list[Sufferer]:
        """Those who were there in [begin, end), who were there longest first."""
        found = [
            Sufferer(life.request_id, life.trace_id, life.tenant, life.entered_ns - life.begun_ns)
            for life in self._lives.values()
            if life.begun_ns < end_ns and (not life.ended or life.entered_ns >= begin_ns)
        ]
        return sorted(found, key=lambda one: -one.lived_ns)

    def open_counts(self, begin_ns: int, end_ns: int) -> Counts:
        """Of [begin, end), the time that requests have been in the stage that they are in."""
        total = Counts()
        for life in self._open.values():
            spent_ns = end_ns - max(life.entered_ns, begin_ns)
            if spent_ns > 0:
                total.live_ns[life.stage] += spent_ns
                if life.stage is Stage.FIRST:
                    total.first_ns[life.tenant] += spent_ns
        return total

    def _enter(self, life: _Life, stage: Stage, at_ns: int) -> None:
        self._leave(life, at_ns)
        life.stage = stage

    def _leave(self, life: _Life, at_ns: int) -> None:
        """File the time in the stage that ends."""
        add_live(self._at, life.stage, life.tenant, life.entered_ns, at_ns)
        life.entered_ns = max(at_ns, life.entered_ns)
