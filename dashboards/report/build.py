"""Folds a journal into an incident: one pass over its facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboards.report.culprits import culprits_of
from dashboards.report.exemplars import chosen, exemplar
from dashboards.report.incident import Incident, Limit, Moment, Record, Spell, Tone
from dashboards.report.limits import EngineFold
from dashboards.report.load import LoadFold
from dashboards.report.moments import Happened, MomentsFold, of_verdicts
from dashboards.report.requests import RequestLines, groups
from dashboards.report.verdicts import HEALTHY, Said, Spread, VerdictWatch
from diagnosis.detection.reference import Reference
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from telemetry.facts.clock import WallAnchor, utc_text
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal_reader import Journal
from telemetry.ledger.builder import LedgerBuilder
from telemetry.pump.pump import Fold
from telemetry.requests.assumed_end import assumed_end
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.requests.timelines import TimelineStore
from telemetry.stats.coverage import CoverageFold

BEFORE_NS = 60_000_000_000  # what of the time before the onset is drawn
AFTER_NS = 30_000_000_000
MOMENTS_SHOWN = 60
_BATCH_FACTS = 512

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Times:
    """Monotonic stamps as a report tells them: seconds since the onset, and the time of day."""

    zero_ns: int
    anchor: WallAnchor

    def s(self, at_ns: int) -> float:
        return (at_ns - self.zero_ns) / 1e9

    def clock(self, at_ns: int) -> str:
        return utc_text(self.anchor.to_unix_ns(at_ns))


class IncidentFold:
    """All folds of a report. Feed it facts, then ask for the incident."""

    def __init__(
        self,
        policy: SloPolicy,
        baseline: Reference | None = None,
        cut: frozenset[str] = frozenset(),
    ) -> None:
        self.facts = 0
        self.first_ns: int | None = None
        self.last_ns = 0
        self.policy = policy
        self.watch = VerdictWatch(Diagnoser(baseline, policy, cut))
        self.lines = RequestLines(policy)
        self.load, self.moments, self.engine = LoadFold(), MomentsFold(), EngineFold()
        self.timelines = TimelineStore(capacity=1_000_000)
        self.ledgers = LedgerBuilder(lambda slo_class: policy.of(slo_class).itl_ns)
        self.coverage = CoverageFold()
        listeners = [
            self.timelines.on_timeline, self.lines.on_timeline, self.coverage.on_timeline,
        ]  # fmt: skip
        self.phases = PhaseFold(listeners, (), self.ledgers, cut)
        self._folds: tuple[Fold, ...] = (
            self.watch, self.lines, self.load, self.moments, self.engine, self.coverage,
            self.phases,
        )  # fmt: skip

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fold in self._folds:
            fold.on_facts(facts)
        self.facts += len(facts)
        stamps = [fact_ns(fact) for fact in facts]
        if self.first_ns is None:
            self.first_ns = min(stamps)
        self.last_ns = max(self.last_ns, *stamps)

    def close(self) -> None:
        """No more facts come: requests in flight are described as far as they came."""
        self.phases.close()
        self.lines.is_over = True
        for request_id in list(self.lines.live):
            end = assumed_end(request_id, self.last_ns, EndReason.SHUTDOWN)
            self.phases.on_facts((end,))
        self.phases.close()


def incident_of(
    journal: Journal,
    source: str,
    policy: SloPolicy | None = None,
    baseline: Reference | None = None,
    progress: Progress = lambda what: None,
) -> Incident:
    """The last incident in a journal; where there is none, its whole time. Without a policy it is
    that of the server that wrote the journal. Raises JournalError."""
    policy = policy or journal.header.slo or DEFAULT_POLICY
    fold = IncidentFold(policy, baseline, journal.cut_requests)
    batch: list[Fact] = []
    for fact in journal.facts():
        batch.append(fact)
        if len(batch) == _BATCH_FACTS:
            fold.on_facts(batch)
            batch = []
            progress(f"{fold.facts} facts read")
    if batch:
        fold.on_facts(batch)
    fold.close()
    return _incident(fold, journal, source)


def _incident(fold: IncidentFold, journal: Journal, source: str) -> Incident:
    first_ns = _first_ns(fold, journal)
    last_ns = max(fold.last_ns, first_ns) + 1
    spread = fold.watch.incidents[-1] if fold.watch.incidents else None
    worst = Diagnosis((), 0, 0, True) if spread is None else spread.worst
    begin_ns, end_ns = _bounds(spread, first_ns, last_ns)
    times = _Times(begin_ns, journal.header.anchors[-1])
    lines, causes = fold.lines.lines, worst.causes
    drawn = (max(first_ns, begin_ns - BEFORE_NS), min(last_ns, end_ns + AFTER_NS))
    load, step_s = fold.load.points(lines.values(), *drawn, begin_ns)
    moments, cut = _moments(fold, times, drawn)
    shown = chosen(causes, lines, begin_ns, end_ns)
    return Incident(
        verdict=worst.verdict,
        why=worst.why,
        onset_clock=times.clock(begin_ns),
        ends_s=None if spread is None or spread.end_ns is None else times.s(spread.end_ns),
        duration_s=(end_ns - begin_ns) / 1e9,
        begin_ns=begin_ns,
        end_ns=end_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        causes=causes,
        incidents_before=max(0, len(fold.watch.incidents) - 1),
        moments=moments,
        moments_cut=cut,
        spells=_spells(fold.watch.said, drawn, times),
        load=load,
        load_step_s=step_s,
        classes=groups(lines.values(), lambda line: line.slo_class, begin_ns, end_ns, fold.policy),
        tenants=groups(lines.values(), lambda line: line.tenant, begin_ns, end_ns),
        culprits=culprits_of(worst.findings, lines, fold.ledgers.harm.report(64), begin_ns, end_ns),
        exemplars=tuple(
            exemplar(lines[name], why, fold.timelines.get(name, fold.phases, last_ns), begin_ns)
            for name, why in shown.items()
        ),
        limits=_limits(fold.engine, end_ns),
        engine=fold.engine.about(),
        abstained=worst.abstained or fold.watch.last.abstained,
        coverage=fold.coverage.report(),
        record=_record(fold, journal, source, times, (first_ns, last_ns)),
    )


def _first_ns(fold: IncidentFold, journal: Journal) -> int:
    """When the record begins. Of one that was cut, that is the cut: facts that it carries from
    before may be days older."""
    if journal.header.cut_ns is not None:
        return journal.header.cut_ns
    return journal.header.at_ns if fold.first_ns is None else fold.first_ns


def _bounds(spread: Spread | None, first_ns: int, last_ns: int) -> tuple[int, int]:
    """[onset, end) of the incident, or of the record."""
    if spread is None:
        return first_ns, last_ns
    begin_ns = max(first_ns, spread.onset_ns)
    return begin_ns, last_ns if spread.end_ns is None else max(begin_ns + 1, spread.end_ns)


def _moments(
    fold: IncidentFold, times: _Times, drawn: tuple[int, int]
) -> tuple[tuple[Moment, ...], int]:
    """The moments in the time that is drawn, verdicts included, and how many more there were."""
    happened = sorted([*fold.moments.all(), *of_verdicts(fold.watch.said)])
    if fold.watch.incidents:
        happened = sorted([*happened, _onset(fold.watch.incidents[-1], times.zero_ns)])
    inside = [one for one in happened if drawn[0] <= one.at_ns <= drawn[1]]
    shown = inside[-MOMENTS_SHOWN:]
    cut = len(inside) - len(shown) + fold.moments.dropped
    return tuple(
        Moment(at_s=times.s(one.at_ns), clock=times.clock(one.at_ns), tone=one.tone, text=one.text)
        for one in shown
    ), cut


def _onset(spread: Spread, at_ns: int) -> Happened:
    late_s = (spread.found_ns - at_ns) / 1e9
    return Happened(at_ns, Tone.BAD, f"The incident begins; it was found {late_s:.1f} s later")


def _spells(said: Sequence[Said], drawn: tuple[int, int], times: _Times) -> tuple[Spell, ...]:
    """The verdicts over the time that is drawn, without gaps."""
    begin_ns, end_ns = drawn
    edges: list[tuple[int, str]] = [(begin_ns, HEALTHY)]
    for one in said:
        if one.at_ns <= begin_ns:
            edges = [(begin_ns, one.diagnosis.verdict)]
        elif one.at_ns < end_ns and one.diagnosis.verdict != edges[-1][1]:
            edges.append((one.at_ns, one.diagnosis.verdict))
    ends = [at_ns for at_ns, _ in edges[1:]] + [end_ns]
    return tuple(
        Spell(begin_s=times.s(at_ns), end_s=times.s(until_ns), verdict=verdict)
        for (at_ns, verdict), until_ns in zip(edges, ends, strict=True)
    )


def _limits(engine: EngineFold, at_ns: int) -> tuple[Limit, ...]:
    return tuple(
        Limit(
            name=name,
            value=value,
            at_start=begun,
            is_changed=changed,
            flag=engine.flag_of(name, at_ns),
        )
        for name, value, begun, changed in engine.limits_at(at_ns)
    )


def _record(
    fold: IncidentFold, journal: Journal, source: str, times: _Times, covered: tuple[int, int]
) -> Record:
    header, (first_ns, last_ns) = journal.header, covered
    notes = []
    if header.cut_ns is not None:
        notes.append(
            f"older facts ({header.facts_dropped}) had been dropped to stay within memory; "
            f"{len(journal.cut_requests)} requests were live then, and are described in part"
        )
    if header.facts_lost:
        notes.append(f"{header.facts_lost} facts were lost before they were kept")
    if journal.truncated is not None:
        notes.append("the end of the file is missing")
    return Record(
        source=source,
        reason=header.reason,
        facts=fold.facts,
        covered_s=(last_ns - first_ns) / 1e9,
        begins=times.clock(first_ns),
        ends=times.clock(last_ns),
        notes=tuple(notes),
    )
