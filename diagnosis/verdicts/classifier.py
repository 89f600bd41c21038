"""A fold that always has an opinion: healthy, at fault and by what, or not to be told.

Every half second of facts it asks whether requests are held up more than usual (`excess`), and
if so charges their time to causes (`blame`). Its opinion depends on the facts so far and on
nothing else, so a journal gives the verdict that was given live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from diagnosis.attribution.blame import Blame, blame
from diagnosis.detection.aggregator import Tally
from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.excess import (
    Exact,
    Half,
    Watch,
    dispersion_of,
    half_of,
    held_up,
    prompted,
    prompted_spread,
    slowed,
    slowed_spread,
    spread_of,
    stopped,
    stopped_of,
)
from diagnosis.detection.history import FindingLog
from diagnosis.detection.reference import Reference, price, promised
from diagnosis.detection.window import Window
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.checks import CHECKS, diagnosis_detached, is_whole
from diagnosis.verdicts.rules import findings_of
from telemetry.facts.engine_records import RecordingSet
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, Fact, fact_ns

_GRACE_NS = 250_000_000  # facts of another writer may be so late
_WARM_UP_NS = 3_000_000_000
_REFERENCE_NS = 40_000_000_000
_LEAST_REFERENCE_NS = 12_000_000_000
_BEHIND_NS = 2_000_000_000  # what is happening now is not yet usual
_REFRESH_TICKS = 6
_STEADY_TICKS = 40
_EMPTY_TICKS = 8
_EASED_SHARE = 0.5  # of the most that were held up at once since the alarm
_GIVEN_UP_TICKS = 60  # that is how things are now
_STEADY_RATIO = 1.3
_LONG = 1.5
_LEAST_FIRST_TOKENS = 8
_WINDOW_NS = 30_000_000_000
# what passes by itself so soon is one of the ups and downs of this server
_SPELL_NS = 8_000_000_000
_UNEXPLAINED_NS = 5_000_000_000
# of the harm, by one cause: then it is clear what a hunch is about
_CLEAR_SHARE = 0.65
_CHECKED_NS = 10_000_000_000
_LAST_FOR_LONG = (EngineDied, EngineHung, EngineRecovered, RecordingSet)  # perhaps


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer of `/debug/diagnosis`.

    `verdict` is `healthy`, `fault` or `indeterminate`, with the reason in `why`. The findings
    are of the `window_ns` before the last half second, since `onset_ns`. `reference` says what
    was usual: this run's `history`, a `baseline`, or what the `slo` promises.
    """

    findings: tuple[Finding, ...]
    window_ns: int
    steps: int
    healthy: bool
    verdict: str = "healthy"
    why: str = ""
    onset_ns: int | None = None
    reference: str = "slo"
    held_up: float = 0.0


class Diagnoser:
    """Feed it facts; it keeps three minutes. With a `baseline` nothing of this run is usual."""

    def __init__(self, baseline: Reference | None = None) -> None:
        self._tally = Tally()
        self._watch = Watch()
        self._baseline = baseline
        self._reference: Reference | None = baseline
        self._tick: int | None = None
        self._quiet_from_ns = 0
        self._refresh = self._empty = 0
        self._standing: list[Finding] = []
        self._halves: deque[tuple[int, Half]] = deque(maxlen=_REFERENCE_NS // BUCKET_NS + 8)
        self._suspect: Symptom | None = None
        self._blame: Blame | None = None
        self._held_up = self._peak = 0.0
        self._diagnosis = Diagnosis((), 0, 0, True)
        self.log = FindingLog()

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._tally.take(fact)
            self._advance(fact_ns(fact) - _GRACE_NS)
            if isinstance(fact, _LAST_FOR_LONG):
                self._judge(fact.at_ns + 1)

    def diagnosis(self) -> Diagnosis:
        """As of the last half second that is complete."""
        return self._diagnosis

    @property
    def live(self) -> int:
        """Requests and sequences of which no end is known."""
        return self._tally.live

    def blame(self) -> Blame | None:
        """The charges behind the last findings."""
        return self._blame

    def reference(self) -> Reference | None:
        """What is usual, None while that is not known."""
        return self._reference

    def _advance(self, at_ns: int) -> None:
        if self._tick is None:
            self._tick = at_ns // BUCKET_NS + 1
            return
        while (self._tick + 1) * BUCKET_NS <= at_ns:
            behind = at_ns // BUCKET_NS - self._tick
            if behind > _REFERENCE_NS // BUCKET_NS:  # nothing happened for long
                self._tick += behind - 1
            self._half_second(self._tick * BUCKET_NS)
            self._tick += 1

    def _half_second(self, begin_ns: int) -> None:
        end_ns = begin_ns + BUCKET_NS
        was_ill_ns = self._watch.onset_ns
        counts = self._tally.counts(begin_ns, end_ns)
        reference = self._reference or promised()
        half = half_of(counts)
        self._halves.append((begin_ns, half))
        held = held_up(half, reference)
        self._held_up = sum(held)
        steps = self._tally.steps(begin_ns, end_ns)
        exact = Exact(
            slow=slowed(steps, reference),
            prompts=prompted(steps, counts.first_tokens, reference),
            stopped=stopped(half, reference),
        )
        self._watch.take(begin_ns, held, exact, counts.first_commit_logs, reference)
        is_over = was_ill_ns is not None and self._watch.onset_ns is None
        if is_over and end_ns - (was_ill_ns or 0) > _SPELL_NS:
            self._quiet_from_ns = end_ns
        if not self._watch.suspects or (self._reference is None and self._is_steady()):
            self._learn(end_ns)
        self._judge(end_ns)
        self._tally.forget(end_ns)

    def _is_steady(self) -> bool:
        """No better and no worse than before, for twenty seconds: that is how this server is,
        whatever is promised."""
        live = [sum(half.live_ns) for _, half in self._halves][-_STEADY_TICKS:]
        middle = len(live) // 2
        before, after = sum(live[:middle]), sum(live[middle:])
        return len(live) == _STEADY_TICKS and after < _STEADY_RATIO * before

    def _learn(self, now_ns: int) -> None:
        """Take what has been so far as usual, if it has been well for long enough."""
        self._refresh += 1
        if self._baseline is not None or self._refresh % _REFRESH_TICKS:
            return
        found = self._price(now_ns - _BEHIND_NS)
        if found is not None:
            self._reference = found

    def _price(self, end_ns: int) -> Reference | None:
        started = self._tally.started
        first_ns = self._tally.first_ns or 0
        born_ns = max(first_ns, 0 if started is None else started.at_ns) + _WARM_UP_NS
        begin_ns = max(born_ns, self._quiet_from_ns + _BEHIND_NS, end_ns - _REFERENCE_NS)
        begin_ns = -(-begin_ns // BUCKET_NS) * BUCKET_NS
        end_ns = end_ns // BUCKET_NS * BUCKET_NS
        if end_ns - begin_ns < _LEAST_REFERENCE_NS:
            return None
        counts = self._tally.counts(begin_ns, end_ns)
        if counts.first_tokens < _LEAST_FIRST_TOKENS:
            return None
        steps = self._tally.steps(begin_ns, end_ns)
        found = price((end_ns - begin_ns) / 1e9, counts, steps, started)
        timed = [one for one in self._halves if begin_ns <= one[0] < end_ns]
        halves = [half for _, half in timed]
        halted, halted_spread = stopped_of(halves)
        return msgspec.structs.replace(
            found,
            spread=spread_of(halves, found),
            slow_spread=slowed_spread(steps, found.cost),
            own_prompt_spread=prompted_spread(steps, timed, found),
            stopped=halted,
            stopped_spread=halted_spread,
            dispersion=dispersion_of(halves),
        )

    def baseline(self) -> Reference | None:
        """All of this run but its first seconds, to be saved."""
        return self._price(self._tally.last_ns)

    def _judge(self, end_ns: int) -> None:
        found, degraded = self._checked(end_ns)
        if not degraded:
            self._heed_hunch(end_ns)
        onset_ns = self._watch.onset_ns
        begin_ns = end_ns - _WINDOW_NS
        self._blame = None
        if onset_ns is None or degraded:
            self._standing, self._peak = [], 0.0
        else:
            begin_ns = max(onset_ns, begin_ns)
            self._blame, charged = self._charge(begin_ns, end_ns, onset_ns)
            found = _together(self._settled(charged), found)
        self._diagnosis = self._verdict(begin_ns, end_ns, found, degraded)
        self.log.take(end_ns, found)

    def _heed_hunch(self, end_ns: int) -> None:
        """What is not sure yet is believed once it has been clear twice what it would be."""
        hunch_ns, before = self._watch.hunch_ns, self._suspect
        self._suspect = None
        if self._watch.onset_ns is not None or hunch_ns is None or self._reference is None:
            return
        _, charged = self._charge(max(hunch_ns, end_ns - _WINDOW_NS), end_ns, hunch_ns)
        if charged and charged[0].share >= _CLEAR_SHARE:
            self._suspect = charged[0].symptom
            if self._suspect is before:
                self._watch.believe()

    def _settled(self, charged: list[Finding]) -> list[Finding]:
        """What stands while the alarm is on: a finding is not taken back for one quiet moment,
        nor made when what it explains has passed.
        An alarm for which nothing can be found and that eases was one of the ups and downs; if
        it comes back, it will ring again."""
        self._peak = max(self._peak, self._held_up)
        if charged and (self._standing or not self._watch.has_eased):
            self._empty, self._standing = 0, charged
            return charged
        self._empty += 1
        has_eased = self._held_up < _EASED_SHARE * self._peak
        if self._empty >= (_EMPTY_TICKS if has_eased else _GIVEN_UP_TICKS):
            self._watch.reset()
            self._empty, self._standing, self._peak = 0, [], 0.0
        return self._standing

    def _charge(self, begin_ns: int, end_ns: int, onset_ns: int) -> tuple[Blame, list[Finding]]:
        window = Window(
            seconds=(end_ns - begin_ns) / 1e9,
            counts=self._tally.counts(begin_ns, end_ns),
            later=self._tally.counts((begin_ns + end_ns) // 2, end_ns),
            steps=self._tally.steps(begin_ns, end_ns),
            started=self._tally.started,
            is_told=bool(self._standing),
        )
        charged = blame(window, self._reference or _alike(window))
        sufferers = self._tally.requests.lived(begin_ns, end_ns)
        found = findings_of(charged, onset_ns, sufferers, self._culprits(window.counts))
        return charged, found

    def _culprits(self, counts: Counts) -> tuple[str, ...]:
        """Requests with more prompt tokens than any usually has, the longest first."""
        usual = 0 if self._reference is None else self._reference.longest_prompt
        owners: dict[str, int] = {}
        for seq_id, tokens in counts.prefill_by_sequence.items():
            if tokens > _LONG * usual:
                name = self._tally.requests.owner(seq_id)
                owners[name] = owners.get(name, 0) + tokens
        return tuple(sorted(owners, key=lambda name: -owners[name]))[:5]

    def _checked(self, end_ns: int) -> tuple[list[Finding], bool]:
        """What is found by counting, and whether the record is too thin for anything else."""
        counts = self._tally.counts(end_ns - _CHECKED_NS, end_ns)
        found = (check(counts, self._tally) for check in CHECKS)
        kept = [finding for finding in found if finding is not None]
        return kept, not is_whole(counts, self._tally)

    def _is_unexplained(self, end_ns: int) -> bool:
        """Requests are held up, and have been for long; a burst that drains is nothing."""
        onset_ns = self._watch.onset_ns
        return onset_ns is not None and end_ns - onset_ns > _UNEXPLAINED_NS and self._held_up > 1.0

    def _verdict(
        self, begin_ns: int, end_ns: int, found: list[Finding], degraded: bool
    ) -> Diagnosis:
        verdict, why = ("fault" if found else "healthy"), ""
        if degraded:
            verdict, why = "indeterminate", f"the record is not whole: {found[0].claim}"
        elif not found and self._is_unexplained(end_ns):
            verdict, why = "indeterminate", "requests are held up, by nothing that the record shows"
        known = "history" if self._baseline is None else "baseline"
        return Diagnosis(
            findings=tuple(found),
            window_ns=end_ns - begin_ns,
            steps=len(self._tally.steps(begin_ns, end_ns)),
            healthy=not found,
            verdict=verdict,
            why=why,
            onset_ns=self._watch.onset_ns,
            reference=known if self._reference is not None else "slo",
            held_up=round(self._held_up, 3),
        )


def not_fed(error: str) -> Diagnosis:
    """In the place of an opinion that stands still because the diagnoser raised `error`."""
    found = diagnosis_detached(error)
    return Diagnosis(
        findings=(found,),
        window_ns=0,
        steps=0,
        healthy=False,
        verdict="indeterminate",
        why=f"the record is not read: {found.claim}",
    )


def _together(charged: list[Finding], counted: list[Finding]) -> list[Finding]:
    """Failures first, then what makes requests late, then what does not yet."""
    named = {finding.symptom for finding in charged}
    rest = [finding for finding in counted if finding.symptom not in named]
    return sorted([*charged, *rest], key=_is_no_failure)


def _is_no_failure(finding: Finding) -> bool:
    """What ends requests is said before what delays them."""
    return finding.symptom not in (
        Symptom.ENGINE_HUNG,
        Symptom.OUT_OF_MEMORY,
        Symptom.STEP_FAILURE,
        Symptom.LOAD_FAILURE,
    )


def _alike(window: Window) -> Reference:
    """What the SLO promises to requests like those of the window."""
    counts = window.counts
    return msgspec.structs.replace(
        promised(),
        prompt_tokens=counts.prompt_tokens,
        output_tokens=counts.output_tokens,
        choices=counts.choices,
        hit_share=counts.hit_share,
        ingest_work_ns=counts.ingest_work_ns / max(1, counts.accepted),
    )
