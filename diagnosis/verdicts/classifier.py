"""The fold that gives the verdict: healthy, at fault and by what, or indeterminate.

Every tick of facts it asks its contributors (`verdicts.contributor`) what they find. The verdict
depends on the facts so far and on nothing else, so a journal gives the verdict that was given live.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from diagnosis.attribution.blame import Blame
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import Reference
from diagnosis.promises.form import Recent
from diagnosis.promises.promises import Promises
from diagnosis.routed.diagnoser import RoutedDiagnoser
from diagnosis.routed.symptoms import FleetFault, RoutedVerdict
from diagnosis.symptoms import Abstention, Finding, Symptom
from diagnosis.thresholds import CHECKED_NS, LATE_FACTS_NS, REFERENCE_NS
from diagnosis.verdicts.abstentions import abstentions, unseen, with_doubts
from diagnosis.verdicts.chains import FirstLinks
from diagnosis.verdicts.checks import CHECKS, diagnosis_detached, is_whole
from diagnosis.verdicts.contributor import Annotator, Contributor, merged
from diagnosis.verdicts.engine_limits import with_engine_limits
from diagnosis.verdicts.history import FindingLog
from diagnosis.verdicts.mean_harm import MeanHarm
from diagnosis.verdicts.tail_findings import named_by_late
from diagnosis.verdicts.tail_harm import TailHarm
from telemetry.facts.engine_records import OWN_ENGINE, RecordingSet
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, Fact, fact_ns
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

# judged at once and not at the next tick: no other fact may follow for a long time
_JUDGED_AT_ONCE = (EngineDied, EngineHung, EngineRecovered, RecordingSet)


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer of `/debug/diagnosis`.

    `verdict` is `healthy`, `fault` or `indeterminate`, with the reason in `why`. Findings are of
    the `window_ns` that ended with the last tick, since `onset_ns`. `reference` says what they are
    compared with: this run's `history`, a `baseline` file, or the `slo`; `nothing` of an attached
    engine whose costs are not known yet, so that no delay is judged. `excess_in_flight` (`held_up`
    in JSON) is the number of delayed requests. `abstained` are symptoms that cannot be judged of
    this `engine`. `fleet` is what a fleet's gateway sees of its engines, None where there are none.
    """

    findings: tuple[Finding, ...]
    window_ns: int
    steps: int
    healthy: bool
    verdict: str = "healthy"
    why: str = ""
    onset_ns: int | None = None
    reference: str = "slo"
    excess_in_flight: float = msgspec.field(default=0.0, name="held_up")
    abstained: tuple[Abstention, ...] = ()
    engine: str = OWN_ENGINE
    fleet: RoutedVerdict | None = None

    @property
    def causes(self) -> tuple[Finding | FleetFault, ...]:
        """All that is found, in the order in which to look at it: causes, those of the fleet, and
        last a missed promise, which says what they cost."""
        faults = self.fleet.faults if self.fleet else ()
        found, missed = list[Finding](), list[Finding]()
        for one in self.findings:
            (missed if one.symptom is Symptom.SLO_MISSED else found).append(one)
        return (*found, *faults, *missed)


class Diagnoser:
    """Feed it facts; it keeps three minutes of them. With a `baseline` nothing is learnt of this
    run. With a `policy` its promises are judged, but for those to the requests in `cut`; without
    one, a queue is judged by the targets of the default policy."""

    def __init__(
        self,
        baseline: Reference | None = None,
        policy: SloPolicy | None = None,
        cut: Collection[str] = (),
    ) -> None:
        self._aggregator = Aggregator(DEFAULT_POLICY if policy is None else policy)
        self._learner = BaselineLearner(self._aggregator, baseline)
        self._mean_harm = MeanHarm(self._aggregator, self._learner)
        # what an earlier one names, a later one does not name again
        self._tail_harm = TailHarm(self._aggregator, self._learner, self._mean_harm)
        self._contributors: tuple[Contributor, ...] = (self._mean_harm, self._tail_harm)
        self._annotators: tuple[Annotator, ...] = (
            named_by_late,
            FirstLinks(self._aggregator, self._learner),
        )
        self._tick: int | None = None
        self._diagnosis = Diagnosis((), 0, 0, True)
        self.log = FindingLog()
        self._promises = None if policy is None else Promises(policy, cut)
        self._routed = RoutedDiagnoser()
        self._said, self._said_of = self._diagnosis, (self._diagnosis, self._routed.verdict)

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._aggregator.on_fact(fact)
            self._routed.on_fact(fact)
            for one in self._contributors:
                one.on_fact(fact)
            if self._promises is not None:
                self._promises.on_fact(fact)
            self._advance(fact_ns(fact) - LATE_FACTS_NS)
            if isinstance(fact, _JUDGED_AT_ONCE):
                self._judge(fact.at_ns + 1)

    def diagnosis(self) -> Diagnosis:
        """The diagnosis as of the last complete tick, with what was said of the fleet last."""
        of_engine, of_fleet = self._diagnosis, self._routed.verdict
        if of_fleet is None:
            return of_engine
        if self._said_of[0] is not of_engine or self._said_of[1] is not of_fleet:
            self._said_of = of_engine, of_fleet
            self._said = _with_fleet(of_engine, of_fleet)
        return self._said

    @property
    def live(self) -> int:
        """Requests and sequences in the books; zero when all have ended."""
        promised = 0 if self._promises is None else self._promises.live
        return self._aggregator.live + promised + self._routed.live

    def blame(self) -> Blame | None:
        """The charges behind the last findings."""
        return self._mean_harm.blame

    def reference(self) -> Reference | None:
        """The baseline, None until one is learnt."""
        return self._learner.reference

    def baseline(self) -> Reference | None:
        """The baseline of this run so far, to be saved; None if too little was normal."""
        return self._learner.fit(self._aggregator.last_ns)

    def _advance(self, at_ns: int) -> None:
        if self._tick is None:
            self._tick = at_ns // BUCKET_NS + 1
            return
        while (self._tick + 1) * BUCKET_NS <= at_ns:
            behind = at_ns // BUCKET_NS - self._tick
            if behind > REFERENCE_NS // BUCKET_NS:  # no facts for a long time
                self._tick += behind - 1
            self._on_tick(self._tick * BUCKET_NS)
            self._tick += 1

    def _on_tick(self, begin_ns: int) -> None:
        end_ns = begin_ns + BUCKET_NS
        for one in self._contributors:
            one.on_tick(begin_ns)
        self._learner.learn(end_ns, is_elevated=any(one.is_elevated for one in self._contributors))
        if self._promises is not None:
            self._promises.tick(end_ns)
        self._judge(end_ns)
        self._aggregator.forget(end_ns)

    def _judge(self, end_ns: int) -> None:
        counted, degraded = self._checked(end_ns)
        charged = [one.findings(end_ns, is_whole=not degraded) for one in self._contributors]
        found = counted if degraded else merged([*charged, counted])
        for annotate in self._annotators:
            found = annotate(found, end_ns)
        if not degraded:
            found += self._missed_promises(end_ns)
        self._diagnosis = self._verdict(end_ns, found, degraded)
        of_fleet = self._routed.verdict
        self.log.update(end_ns, [*found, *(of_fleet.faults if of_fleet else ())])

    def _missed_promises(self, end_ns: int) -> list[Finding]:
        """After every cause: they say what it costs, and not why."""
        if self._promises is None:
            return []
        aggregator = self._aggregator

        def recent_since(begin_ns: int) -> Recent:
            first_ns = (aggregator.first_ns or 0) // BUCKET_NS * BUCKET_NS
            begin_ns = max(first_ns, begin_ns)
            counts = aggregator.counts(begin_ns, end_ns)
            return Recent((end_ns - begin_ns) / 1e9, counts, aggregator.started)

        found = self._promises.finding(recent_since, end_ns)
        return [] if found is None else [found]

    def _checked(self, end_ns: int) -> tuple[list[Finding], bool]:
        """Findings by counting, and whether the record is too incomplete for any other."""
        counts = self._aggregator.counts(end_ns - CHECKED_NS, end_ns)
        found = (check(counts, self._aggregator) for check in CHECKS)
        kept = [finding for finding in found if finding is not None]
        return kept, not is_whole(counts, self._aggregator)

    def _verdict(self, end_ns: int, found: list[Finding], degraded: bool) -> Diagnosis:
        verdict, why = ("fault" if found else "healthy"), ""
        if degraded:
            verdict, why = "indeterminate", f"the record is not whole: {found[0].claim}"
        elif not found and self._mean_harm.is_unexplained(end_ns):
            verdict, why = "indeterminate", "requests are delayed, and nothing recorded explains it"
        known = "baseline" if self._learner.is_given else "history"
        unknown = "nothing" if self._aggregator.is_attached else "slo"
        missing = unseen(self._aggregator)
        abstained = abstentions(missing, [finding.symptom for finding in found])
        started = self._aggregator.started
        begin_ns = self._mean_harm.window_begin_ns
        onsets_ns = [one.onset_ns for one in self._contributors if one.onset_ns is not None]
        return Diagnosis(
            findings=with_engine_limits(with_doubts(found, abstained), started),
            window_ns=end_ns - begin_ns,
            steps=len(self._aggregator.steps(begin_ns, end_ns)),
            healthy=not found,
            verdict=verdict,
            why=why,
            onset_ns=min(onsets_ns, default=None),
            reference=known if self._learner.reference is not None else unknown,
            excess_in_flight=round(self._mean_harm.excess, 3),
            abstained=abstained,
            engine=OWN_ENGINE if started is None else started.engine,
        )


def _with_fleet(of_engine: Diagnosis, of_fleet: RoutedVerdict) -> Diagnosis:
    """A fault of the fleet is a fault, and explains delays that nothing else does. A record that is
    not whole stays so."""
    found = msgspec.structs.replace(of_engine, fleet=of_fleet)
    if not of_fleet.faults or of_engine.verdict == "fault":
        return found
    if of_engine.verdict == "indeterminate" and of_engine.findings:
        return found
    return msgspec.structs.replace(found, healthy=False, verdict="fault", why="")


def diagnoser_failed(error: str) -> Diagnosis:
    """The verdict after the diagnoser raised `error` and is no longer fed."""
    found = diagnosis_detached(error)
    return Diagnosis(
        findings=(found,),
        window_ns=0,
        steps=0,
        healthy=False,
        verdict="indeterminate",
        why=f"the record is not read: {found.claim}",
    )
