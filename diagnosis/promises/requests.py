"""Live requests: each is judged as soon as its verdict is sure, which may be long before it ends.

A request that waits for its first token beyond its target has missed. One whose late gaps are
already more than its longest possible answer allows has missed too. What is judged at its end is
judged as the SLO report does (`telemetry.stats.slo`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from diagnosis.promises.step_clock import (
    HOST,
    NEXT_STEP,
    PROMPTS,
    START,
    Reading,
    StepClock,
    fitted,
    waited_for,
    went_to,
)
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import RequestAccepted
from telemetry.requests.account import Part
from telemetry.requests.slo_policy import SloClass
from telemetry.stats.slo import allowed_late

INGEST, DELIVER, OWN_PREFILL = "ingest", "deliver", Part.OWN_PREFILL.value
_CAPPED = f"wait: {WaitReason.POLICY.value}"


class Missed(StrEnum):
    """What a request missed."""

    FIRST_TOKEN = "late_first_token"
    TOKENS = "slow_tokens"
    UNSERVED = "unserved"  # refused or failed


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One sequence of a live request. `queued` is the reading when it was submitted, `first_row`
    when it got its first row, `last` at its last token; `own_ns` is the time of its prompt."""

    request: LiveRequest
    queued_ns: int
    queued: Reading
    capped_ns: int
    row_ns: int | None = None
    first_row: Reading = START
    own_ns: float = 0.0
    last_ns: int | None = None
    last: Reading = START
    skipped: Counter[str] | None = None

    def first_token_parts(self, clock: StepClock, now_ns: int) -> Counter[str]:
        """Where [accepted, now) went; the sequence has no token before now."""
        request = self.request
        parts = Counter({INGEST: max(0, self.queued_ns - request.accepted_ns)})
        until_ns, until = (
            (now_ns, clock.now) if self.row_ns is None else (self.row_ns, self.first_row)
        )
        waited_ns = max(0, until_ns - self.queued_ns)
        capped_ns = min(waited_ns, clock.capped_ns[request.tenant] - self.capped_ns)
        waits = fitted(waited_for(self.queued, until), waited_ns - capped_ns, NEXT_STEP)
        waits[_CAPPED] += capped_ns
        parts += waits
        if self.row_ns is not None:
            run = went_to(self.first_row, clock.now)
            own_ns = min(run[PROMPTS], round(self.own_ns))
            run[PROMPTS] -= own_ns
            run[OWN_PREFILL] += own_ns
            parts += fitted(run, max(0, now_ns - self.row_ns), HOST)
        return +parts

    def gap_parts(self, clock: StepClock, gap_ns: int) -> Counter[str]:
        """Where the time since its last token went."""
        skipped = self.skipped or Counter()
        skipped_ns = min(gap_ns, skipped.total())
        engine = fitted(went_to(self.last, clock.now), gap_ns - skipped_ns, HOST)
        return engine + fitted(skipped, skipped_ns, HOST)


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that has not ended. `missed` is set as soon as that is sure; `is_waiting` while it
    has no token; `is_running` once it had one in time, until it misses. Whether one that is
    `attached` waits is not known before its engine core tells of a sequence; `is_put_off`: so it
    was not judged when it was due."""

    request_id: str
    trace_id: str
    tenant: str
    accepted_ns: int
    target: SloClass
    stream: bool = False
    prompt_tokens: int = 0
    hit_tokens: int = 0
    received_tokens: int = 0
    most_gaps: int = 0
    gaps: int = 0
    late: int = 0
    worst_gap_ns: int = 0
    first_ns: int | None = None
    missed: Missed | None = None
    is_waiting: bool = True
    is_running: bool = False
    attached: bool = False
    is_put_off: bool = False
    sequences: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, fact: RequestAccepted, target: SloClass) -> LiveRequest:
        return cls(
            fact.request_id, fact.trace_id, fact.tenant, fact.at_ns, target, attached=fact.attached
        )

    @property
    def due_ns(self) -> int:
        """When its first token is late."""
        return self.accepted_ns + self.target.ttft_ns

    @property
    def is_unseen(self) -> bool:
        """Its engine may have given it tokens that nothing observes."""
        return self.attached and not self.sequences

    @property
    def is_sure_to_be_slow(self) -> bool:
        """More gaps are late than even its longest answer allows."""
        return self.late > allowed_late(max(self.gaps, self.most_gaps))

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that are computed, as far as is known."""
        return max(1, self.prompt_tokens - self.hit_tokens - self.received_tokens)
