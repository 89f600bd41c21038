"""The view model of a report: everything that the page says, and nothing that it has to work out.

Times are seconds from the incident's onset; before it they are negative. `clock` is the time of day
in UTC. No prompt, no output and no token id: the facts that it is made of have none.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from diagnosis.routed.symptoms import FleetFault
from diagnosis.symptoms import Abstention, Finding
from telemetry.facts.limits import LimitValue
from telemetry.stats.coverage import Coverage


class Tone(StrEnum):
    """How a line of the timeline is marked."""

    BAD = "bad"
    GOOD = "good"
    CHANGE = "change"
    NOTE = "note"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    at_s: float
    clock: str
    tone: Tone
    text: str


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time with one verdict: healthy, fault or indeterminate."""

    begin_s: float
    end_s: float
    verdict: str


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The load in one interval that begins at `at_s`; None: no step was committed in it."""

    at_s: float
    good: int
    missed: int
    running: int | None
    waiting: int | None
    longest_step_ms: float | None
    blocks_share: float | None


class GroupImpact(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one class, or of one tenant, during the incident and before it.

    `requests` ended in that time, or were in flight at the end of the record; `missed` of them did
    not meet their SLO, `in_flight` had not ended, `overdue` of these are beyond a target already.
    `verdicts` counts what was missed. None: not measured.
    """

    name: str
    requests: int
    missed: int
    in_flight: int
    overdue: int
    verdicts: dict[str, int]
    ttft_p95_ms: float | None
    gap_p95_ms: float | None
    before_requests: int
    before_missed: int
    before_ttft_p95_ms: float | None
    before_gap_p95_ms: float | None
    ttft_target_ms: float | None = None
    itl_target_ms: float | None = None

    @property
    def hit(self) -> int:
        """Requests that missed, or will."""
        return self.missed + self.overdue


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A request or a tenant that took time from others.

    `is_named` by the verdict; else it is in the direct ledger only. `took_ms` is what the ledger
    of ended requests charges to it, None where it has no entry.
    """

    name: str
    is_request: bool
    is_named: bool
    took_ms: float | None
    requests: int
    tenant: str = ""
    slo_class: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    arrived_s: float | None = None


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of a waterfall, in shares of the whole; a late token has no name."""

    name: str
    left: float
    width: float
    ms: float


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request's time; `payer` is the request or the cause that took it."""

    state: str
    part: str
    payer: str
    ms: float
    share: float


class LateToken(msgspec.Struct, frozen=True, kw_only=True):
    """A gap between two tokens that was longer than the class allows."""

    after_ms: float
    gap_ms: float
    allowed_ms: float
    part: str
    culprit: str


class Exemplar(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was hit, as a waterfall with its ledger. `why` it was chosen."""

    request_id: str
    trace_id: str
    tenant: str
    slo_class: str
    why: str
    outcome: str
    verdict: str
    arrived_s: float
    e2e_ms: float
    ttft_ms: float | None
    gap_max_ms: float | None
    prompt_tokens: int | None
    output_tokens: int
    bars: tuple[Bar, ...]
    late: tuple[Bar, ...]
    ledger: tuple[LedgerLine, ...]
    late_tokens: tuple[LateToken, ...]
    late_tokens_cut: int


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit in force during the incident; `at_start` where it was another one, `flag` what an
    attached engine calls it."""

    name: str
    value: LimitValue
    at_start: LimitValue
    is_changed: bool
    flag: str = ""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What would have helped, by replay: the action, the gain that is promised, and whether it can
    be set while the server runs (None: it is no setting). `is_remedy`: it is one against what was
    found, and not only a difference that costs time."""

    action: str
    promise: str
    is_runtime: bool | None = None
    is_remedy: bool = False


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One SLO class under some settings, measured or replayed."""

    label: str
    slo_class: str
    requests: int
    good_pct: float
    ttft_p95_ms: float | None
    itl_p99_ms: float | None


class Remedies(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the replays; `why_not` says why there is none, or no remedy."""

    gains: tuple[Gain, ...] = ()
    sentences: tuple[str, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    why_not: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the report was made of, and what is missing from it."""

    source: str
    reason: str
    facts: int
    covered_s: float
    begins: str
    ends: str
    notes: tuple[str, ...]


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """All of a report but the replays.

    `causes` are those of the worst moment of the incident, of the server and of its fleet, the
    first one first; `top` is None where nothing is wrong. `duration_s` is its length up to
    `ends_s`, which is None while it goes on. `begin_ns` and `end_ns` are its monotonic stamps.
    `abstained` are symptoms that cannot be judged of an attached engine, `coverage` is how much of
    requests' time was observed.
    """

    verdict: str
    why: str
    onset_clock: str
    ends_s: float | None
    duration_s: float
    begin_ns: int
    end_ns: int
    last_ns: int
    first_ns: int
    causes: tuple[Finding | FleetFault, ...]
    incidents_before: int
    moments: tuple[Moment, ...]
    moments_cut: int
    spells: tuple[Spell, ...]
    load: tuple[LoadPoint, ...]
    load_step_s: float
    classes: tuple[GroupImpact, ...]
    tenants: tuple[GroupImpact, ...]
    culprits: tuple[Culprit, ...]
    exemplars: tuple[Exemplar, ...]
    limits: tuple[Limit, ...]
    engine: dict[str, str]
    record: Record
    abstained: tuple[Abstention, ...] = ()
    coverage: Coverage = Coverage()

    @property
    def top(self) -> Finding | FleetFault | None:
        return self.causes[0] if self.causes else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the server itself."""
        return tuple(one for one in self.causes if isinstance(one, Finding))

    @property
    def hit(self) -> int:
        """Requests that missed their SLO, or will."""
        return sum(one.hit for one in self.classes)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.classes)
