"""What is said of imported evidence."""

from __future__ import annotations

import msgspec

from diagnosis.importers.kinds import Certainty, Kind
from diagnosis.symptoms import Evidence, Symptom


class ImportedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause. `share` is its part of the lateness that was found, None for what makes nobody
    late. `open_to` are causes that would look the same in this evidence. There are no culprits:
    nobody can be named from it."""

    symptom: Symptom
    certainty: Certainty
    claim: str
    evidence: tuple[Evidence, ...]
    runbook: str
    share: float | None = None
    open_to: tuple[Symptom, ...] = ()


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """Lateness that is measured, and that one of these causes makes: which, this evidence cannot
    say."""

    claim: str
    causes: tuple[Symptom, ...]
    evidence: tuple[Evidence, ...]
    share: float


class CauseTold(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this evidence could tell a cause: how surely, or what is missing."""

    symptom: Symptom
    certainty: Certainty | None
    open_to: tuple[Symptom, ...] = ()
    missing: str = ""


class ImportedDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict` is `found`, `undecided` (late, and no cause is sure), `nothing_found`, or
    `abstains` with the reason in `why`. `now_s` and `usual_s` are the stretches that were compared,
    from the begin of the record, in `unit`; empty where nothing was."""

    kind: Kind
    verdict: str
    why: str
    findings: tuple[ImportedFinding, ...]
    undecided: tuple[Undecided, ...]
    causes: tuple[CauseTold, ...]
    records: int
    noun: str
    length: float
    unit: str
    now: tuple[tuple[float, float], ...] = ()
    usual: tuple[tuple[float, float], ...] = ()
    unread: int = 0
    skipped: int = 0
    notes: tuple[str, ...] = ()
