"""The promises of a server: judged at each tick, and told as one finding.

A policy names the classes and their targets. The fold is fed every fact; `missed` and `finding`
say what is missed now. It depends on the facts so far and on nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import exp

from diagnosis.evidence import Promised
from diagnosis.promises.book_keeper import BookKeeper
from diagnosis.promises.chance import evidence
from diagnosis.promises.class_book import ClassBook
from diagnosis.promises.form import Recent, Situation
from diagnosis.promises.requests import Missed
from diagnosis.promises.thresholds import REFRESH_NS, SHORT_NS
from diagnosis.symptoms import Evidence, Finding, MissedPromise, MissForm, Symptom
from diagnosis.thresholds import MOST_CONFIDENCE
from telemetry.facts.records import Fact
from telemetry.requests.slo_policy import SloPolicy

_MOST_VICTIMS, _MOST_EXEMPLARS, _PARTS_TOLD = 10, 3, 3
_FORMS = {
    MissForm.IMPOSSIBLE: "even alone on this machine they would be late",
    MissForm.ONE_CLASS: "the other classes are served as promised",
    MissForm.MISCONFIGURED: "the engine could serve them, and {setting} keeps it from it",
    MissForm.AT_ITS_LIMIT: "more work comes than the engine can do in time",
    MissForm.OUTSIDE: "neither a setting nor the demand explains it",
}

_LEAST_TOLD_NS = 50_000  # what is 0.1 ms in print


class Promises:
    """`cut` are requests whose first facts are missing: they are not judged."""

    def __init__(self, policy: SloPolicy, cut: Collection[str] = ()) -> None:
        self._keeper = BookKeeper(policy, cut)
        self._told: Finding | None = None
        self._told_ns = 0

    @property
    def live(self) -> int:
        """Requests and sequences in the books; zero when all have ended."""
        return self._keeper.live

    @property
    def is_missed(self) -> bool:
        """Whether any class misses its objective."""
        return any(book.attainment.onset_ns is not None for book in self._keeper.books.values())

    def on_fact(self, fact: Fact) -> None:
        self._keeper.on_fact(fact)

    def tick(self, end_ns: int) -> None:
        """The tick that ends at `end_ns` is over: judge every class."""
        self._keeper.tick(end_ns)

    def missed(self, recent: Recent, end_ns: int) -> list[MissedPromise]:
        """The classes that miss their objective now, the fastest burning first."""
        books = self._keeper.books
        situation = Situation(recent, self._keeper.clock.cost, books, end_ns)
        found = [self._missed(situation, books[name], end_ns) for name in situation.missed]
        return sorted(found, key=lambda one: -one.burn)

    def finding(self, recent_since: Callable[[int], Recent], end_ns: int) -> Finding | None:
        """All missed classes as one finding; None where every objective is met. It is made anew
        every REFRESH_NS, and when a class is missed or met. `recent_since` gives what the engine
        did from a stamp until `end_ns`."""
        if not self.is_missed:
            self._told = None
            return None
        books = self._keeper.books.items()
        names = {name for name, book in books if book.attainment.onset_ns is not None}
        told = self._told
        is_same = told is not None and {one.slo_class for one in told.promises} == names
        if not is_same or end_ns - self._told_ns >= REFRESH_NS:
            recent = recent_since(end_ns - SHORT_NS)
            self._told, self._told_ns = self._finding(self.missed(recent, end_ns)), end_ns
        return self._told

    def _finding(self, missed: list[MissedPromise]) -> Finding:
        worst = missed[0]
        books = [self._keeper.books[one.slo_class] for one in missed]
        late = [one for book in books for one in reversed(book.misses)]
        return Finding(
            symptom=Symptom.SLO_MISSED,
            confidence=max(_confidence(book) for book in books),
            claim="; ".join(_claim(one) for one in missed),
            harm_ms=round(sum(book.excess_ns for book in books) / 1e6, 1),
            evidence=_evidence(worst),
            victims=tuple(one.request_id for one in late[:_MOST_VICTIMS]),
            exemplars=tuple(one.trace_id for one in late[:_MOST_EXEMPLARS]),
            share=0.0,
            onset_ns=min(one.since_ns for one in missed),
            runbook=f"runbooks/{Symptom.SLO_MISSED.value}.md",
            promises=tuple(missed),
        )

    def _missed(self, situation: Situation, book: ClassBook, end_ns: int) -> MissedPromise:
        parts = book.parts() + self._keeper.waiting_parts(book, end_ns)
        form, setting, share = situation.form_of(book, parts)
        short, long = book.attainment.short(end_ns), book.attainment.long()
        what = Counter(one.what for one in book.misses)
        target, allowed = book.target, book.attainment.allowed
        assert book.attainment.onset_ns is not None
        return MissedPromise(
            slo_class=target.name,
            form=form,
            objective=target.objective,
            requests=short.requests,
            missed=short.missed,
            late_first_tokens=what[Missed.FIRST_TOKEN],
            slow_tokens=what[Missed.TOKENS],
            unserved=what[Missed.UNSERVED],
            burn=round(short.share / allowed, 1),
            burn_5min=round(long.share / allowed, 1),
            ttft_target_ms=target.ttft_ns / 1e6,
            ttft_p95_ms=_ms(book.ttft_p95_ns(end_ns)),
            itl_target_ms=target.itl_ns / 1e6,
            worst_gap_p95_ms=_ms(book.worst_gap_p95_ns()),
            parts=_told(parts),
            setting=setting,
            utilisation=None if share is None else round(share, 2),
            since_ns=book.attainment.onset_ns,
        )


def _told(parts_ns: Counter[str]) -> dict[str, float]:
    """Parts in ms, the largest first."""
    told = [(name, ns) for name, ns in parts_ns.most_common() if ns >= _LEAST_TOLD_NS]
    return {name: round(ns / 1e6, 1) for name, ns in told}


def _ms(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 1)


def _confidence(book: ClassBook) -> float:
    """One less the chance of so many misses at the objective."""
    long = book.attainment.long()
    nats = evidence(long.missed, long.requests, book.attainment.allowed, long.together)
    return round(min(MOST_CONFIDENCE, 1 - exp(-nats)), 3)


def _claim(one: MissedPromise) -> str:
    """In one line: who misses what, by how much, where the time goes, and in which form."""
    missed = [f"{one.missed} of {one.requests} requests of class {one.slo_class} missed their SLO"]
    if one.late_first_tokens:
        missed.append(_beyond("TTFT p95", one.ttft_p95_ms, one.ttft_target_ms))
    if one.slow_tokens:
        missed.append(_beyond("longest gap p95", one.worst_gap_p95_ms, one.itl_target_ms))
    if one.unserved:
        missed.append(f"{one.unserved} refused or failed")
    largest = list(one.parts.items())[:_PARTS_TOLD]
    total = sum(one.parts.values())
    if total:
        told = ", ".join(f"{name} {100 * ms / total:.0f} %" for name, ms in largest)
        missed.append(f"their time went to {told}")
    said = _FORMS[one.form].format(setting=one.setting)
    return f"{', '.join(missed)}: {said} ({one.form.value})"


def _beyond(name: str, value_ms: float | None, target_ms: float) -> str:
    value = "unknown" if value_ms is None else f"{value_ms:.0f} ms"
    return f"{name} {value} of {target_ms:.0f} ms"


def _evidence(worst: MissedPromise) -> tuple[Evidence, ...]:
    """The evidence of the class that burns fastest."""
    return (
        Promised.MISSED_SHARE.of(worst.missed / max(1, worst.requests)),
        Promised.OBJECTIVE.of(worst.objective),
        Promised.BURN_30S.of(worst.burn),
        Promised.BURN_5MIN.of(worst.burn_5min),
        Promised.TTFT_P95.of(worst.ttft_p95_ms),
        Promised.TTFT_TARGET.of(worst.ttft_target_ms),
        Promised.WORST_GAP_P95.of(worst.worst_gap_p95_ms),
        Promised.ITL_TARGET.of(worst.itl_target_ms),
        Promised.UTILISATION.of(worst.utilisation),
    )
