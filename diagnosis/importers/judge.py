"""What a record says: findings, what is late without a cause that is sure, and what it cannot tell.

A stretch that is later than the rest is compared with the rest. Without one, only what needs no
comparison is said: preemptions, a queue that is most of the wait, an engine that stands still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diagnosis.importers.absolute import counted_findings, steady_findings
from diagnosis.importers.findings import FINDERS, is_kv_full, shown
from diagnosis.importers.kinds import KINDS, Kind
from diagnosis.importers.parts import Case, Part, parts_of
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.reading import Tally
from diagnosis.importers.records import Record, Span
from diagnosis.importers.thresholds import BLURRED_SHARE, LEAST_RECORDS, LEAST_TICKS
from diagnosis.importers.verdict import (
    CauseTold,
    ImportedDiagnosis,
    ImportedFinding,
    Undecided,
)
from diagnosis.importers.ways import ON_DEVICE, ON_HOST, SLOW_STEPS, all_told, told_by
from diagnosis.importers.windows import Change, find_change, given_change
from diagnosis.symptoms import Symptom
from diagnosis.thresholds import LEAST_SHARE

_WHY_LATE = {
    Part.PREFILL: (
        *SLOW_STEPS,
        Symptom.PREFILL_INTERFERENCE,
        Symptom.BUDGET_TOO_SMALL,
        Symptom.OVERSIZED_BATCH,
    ),
    Part.FRONT: (*SLOW_STEPS, Symptom.INGEST_BACKLOG, Symptom.SLOW_CLIENT),
    Part.TOKENS: SLOW_STEPS,
    Part.TOKENS_BY_PROMPTS: (*SLOW_STEPS, Symptom.PREFILL_INTERFERENCE),
    Part.TOKENS_BY_BATCH: (*SLOW_STEPS, Symptom.OVERSIZED_BATCH),
    Part.QUEUE: (*SLOW_STEPS, Symptom.QUEUE_OVERLOAD, Symptom.KV_EXHAUSTION, Symptom.UNFAIRNESS),
}
_SHOWN = (Q.TOKEN_EACH, Q.PREFILL_EACH, Q.QUEUE_EACH, Q.STEP_EACH, Q.DEVICE_EACH)


def judge(
    kind: Kind, record: Record, tally: Tally, given: tuple[Span, Span] | None = None
) -> ImportedDiagnosis:
    """`given`: the stretch to judge and the one to compare it with; otherwise they are found."""
    change = find_change(record) if given is None else given_change(record, *given)
    case = Case.of(record, change)
    found, undecided = _said(case)
    is_little = record.count < LEAST_RECORDS
    if is_little:
        found, undecided = [], []
    is_short = change is None and len(record.ticks()) < LEAST_TICKS
    verdict, why = _verdict(case, found, undecided, is_little=is_little, is_short=is_short)
    return ImportedDiagnosis(
        kind=kind,
        verdict=verdict,
        why=why,
        findings=tuple(found),
        undecided=tuple(undecided),
        causes=tuple(_causes(record)),
        records=record.count,
        noun=record.noun,
        length=_seconds(record, record.span.end_ns),
        unit=record.unit,
        now=() if change is None else _spans(record, change.now),
        usual=() if change is None else _spans(record, change.usual),
        unread=tally.unread,
        skipped=tally.skipped,
        notes=tuple(_notes(kind, record, tally, change)),
    )


def _said(case: Case) -> tuple[list[ImportedFinding], list[Undecided]]:
    """The causes with the largest parts first; then what is counted."""
    found: list[ImportedFinding] = []
    undecided: list[Undecided] = []
    parts = parts_of(case)
    total = sum(parts.values())
    is_blurred = parts.get(Part.TOKENS, 0.0) >= BLURRED_SHARE * total
    for part, lost in sorted(parts.items(), key=lambda one: -one[1]):
        share = lost / total
        if share < LEAST_SHARE:
            continue
        is_sure = part in FINDERS and not (is_blurred and _may_follow(case, part))
        named = FINDERS[part](case, share) if is_sure else None
        if named is not None:
            found.append(named)
        else:
            undecided.append(_undecided(case, part, share))
    if not case.is_compared:
        found += steady_findings(case)
    said = {one.symptom for one in found}
    found += [one for one in counted_findings(case) if one.symptom not in said]
    return found, undecided


def _may_follow(case: Case, part: Part) -> bool:
    """Slower steps make queues, longer overlaps and a late front end by themselves; they do not
    fill the KV cache, lengthen prompts or miss a prefix."""
    if part is Part.QUEUE:
        return not is_kv_full(case)
    return part in (Part.FRONT, Part.TOKENS_BY_PROMPTS, Part.TOKENS_BY_BATCH)


def _undecided(case: Case, part: Part, share: float) -> Undecided:
    """Late, by one of several causes."""
    causes = _WHY_LATE.get(part, SLOW_STEPS)
    if part is Part.TOKENS and not case.explained:
        causes = (*causes, Symptom.PREFILL_INTERFERENCE, Symptom.OVERSIZED_BATCH)
    if part in (Part.PREFILL, Part.TOKENS_BY_PROMPTS) and Q.HIT_SHARE not in case.now:
        causes = (*causes, Symptom.PREFIX_CACHE_COLD)
    host = _host_side(case)
    if part is Part.TOKENS and host is not None:
        causes = ON_HOST if host else ON_DEVICE
    return Undecided(
        claim=f"requests are late {part.value}: one of these causes, and {case.record.noun} do not "
        "say which",
        causes=causes,
        evidence=shown(case, *(name for name in _SHOWN if name in case.now)),
        share=round(share, 3),
    )


def _host_side(case: Case) -> bool | None:
    """Whether steps are longer outside the device; None where that is not measured."""
    if Q.DEVICE_EACH not in case.now or Q.DEVICE_EACH not in case.usual:
        return None
    device = case.now[Q.DEVICE_EACH] - case.usual[Q.DEVICE_EACH]
    longer = case.now.get(Q.STEP_EACH, 0.0) - case.usual.get(Q.STEP_EACH, 0.0)
    return device < longer / 2


def _verdict(
    case: Case,
    found: list[ImportedFinding],
    undecided: list[Undecided],
    *,
    is_little: bool,
    is_short: bool,
) -> tuple[str, str]:
    record = case.record
    if is_little:
        return "abstains", f"{record.count} {record.noun} are too few to say anything"
    if found:
        return "found", ""
    if undecided:
        return "undecided", "requests are late, and no cause is sure"
    if case.is_compared:
        return "abstains", "a stretch is later than the rest, and nothing of it is clear"
    if is_short:
        return "abstains", (
            f"{_seconds(record, record.span.end_ns):.0f} {record.unit} with so few requests are "
            "too little to compare one part with another"
        )
    return "nothing_found", "no stretch of it is later than the rest"


def _causes(record: Record) -> Iterator[CauseTold]:
    for one in all_told(record.seen):
        if one.way is None:
            yield CauseTold(symptom=one.symptom, certainty=None, missing=one.missing)
        else:
            yield CauseTold(
                symptom=one.symptom, certainty=one.way.certainty, open_to=one.way.open_to
            )


def _spans(record: Record, spans: Iterable[Span]) -> tuple[tuple[float, float], ...]:
    """Seconds from the begin; spans that touch are one."""
    merged: list[tuple[float, float]] = []
    for span in spans:
        begin, end = _seconds(record, span.begin_ns), _seconds(record, span.end_ns)
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return tuple(merged)


def _seconds(record: Record, at_ns: int) -> float:
    return round((at_ns - record.span.begin_ns) / 1e9, 1)


def _notes(kind: Kind, record: Record, tally: Tally, change: Change | None) -> Iterator[str]:
    """What limits what is said."""
    yield KINDS[kind].limits
    if tally.text:
        yield tally.text
    absent = [one.value for one in KINDS[kind].seen - record.seen]
    if absent:
        yield f"this record does not have: {', '.join(sorted(absent))}"
    restarts = getattr(record, "restarts", 0)
    if restarts:
        yield f"counters began again {restarts} times: the engine was started again"
    cut_off = getattr(record, "cut_off", 0)
    if cut_off:
        yield f"scrapes that are not whole, and are left out: {cut_off}"
    if change is None and told_by(Symptom.QUEUE_OVERLOAD, record.seen).way is not None:
        yield "what is late all the time looks usual; only a queue and what is counted would show"
