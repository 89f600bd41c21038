"""In which form a class misses its promise, as far as the record alone shows it.

    impossible      most missed requests would be late alone on this machine
    one_class       the other classes that have enough requests are served as promised
    at_its_limit    at the best batch the demand is more than the engine can do
    misconfigured   it is not, and a limit binds: slots, budget, blocks, caps, queue limits
    outside         it is not, and none binds: what makes it late is a cause of its own

The first that holds counts. Replays of the last minutes under other settings
(`diagnosis.settings_search`) confirm or correct it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf

from diagnosis.detection.counts import Counts
from diagnosis.promises.class_book import ClassBook
from diagnosis.promises.margins import Demand, alone_ns, gap_alone_ns, utilisation
from diagnosis.promises.requests import OWN_PREFILL, Missed
from diagnosis.promises.step_clock import BASE, DECODES, HOST, NEXT_STEP, PROMPTS, WAITS
from diagnosis.promises.thresholds import BINDS, FULL, IMPOSSIBLE_SHARE, LEAST_REQUESTS
from diagnosis.symptoms import MissForm
from telemetry.facts.engine_records import EngineStarted, StepCostSet
from telemetry.facts.reasons import EndReason, WaitReason

_SEQS, _BUDGET, _KV = "max_num_seqs", "max_batched_tokens", "kv_memory"
_CACHE_SIZE, _DIGITS = "kv_cache_size_tokens", 20  # a setting of vLLM; more digits are no size
_SETTING_OF_WAIT = {
    WaitReason.SEQS: _SEQS,
    WaitReason.BUDGET: _BUDGET,
    WaitReason.KV: _KV,
    WaitReason.PREEMPTED: _KV,
    WaitReason.POLICY: "tenant_max_seqs",
}
_SETTING_OF_REFUSAL = {
    EndReason.QUEUE_FULL: "queue_limit",
    EndReason.TENANT_LIMIT: "tenant_queue_limit",
}


@dataclass(frozen=True, slots=True)
class Recent:
    """The last seconds of the engine: counts of all of it, and the limits in force."""

    seconds: float
    counts: Counts
    started: EngineStarted | None


class Situation:
    """What decides the form, for all classes of one moment: what came, the cost, and who is met."""

    def __init__(
        self, recent: Recent, cost: StepCostSet | None, books: dict[str, ClassBook], end_ns: int
    ) -> None:
        self.recent = recent
        self.cost = cost
        self._end_ns = end_ns
        shares = {name: book.attainment.short(end_ns) for name, book in books.items()}
        self.missed = [name for name, b in books.items() if b.attainment.onset_ns is not None]
        self.met = [
            name
            for name, share in shares.items()
            if name not in self.missed
            and share.requests >= LEAST_REQUESTS
            and share.share <= books[name].attainment.allowed
        ]

    def utilisation(self, book: ClassBook, setting: str) -> float | None:
        """The demand over what the engine can do within the ITL target of this class."""
        started = self.recent.started
        if self.cost is None or started is None:
            return None
        demand = Demand.of(self.recent.counts, self.recent.seconds)
        tokens = inf if setting == _KV else _cache_tokens(started)
        return utilisation(self.cost, demand, book.target.itl_ns, tokens)

    def form_of(self, book: ClassBook, parts: Counter[str]) -> tuple[MissForm, str, float | None]:
        """The form, the setting that binds or an empty string, and the utilisation."""
        setting = self.binding(book, parts)
        share = book.utilised(self.utilisation(book, setting))
        if self._is_impossible(book):
            return MissForm.IMPOSSIBLE, "", share
        if len(self.missed) == 1 and self.met:
            return MissForm.ONE_CLASS, setting, share
        if share is not None and share > FULL:
            return MissForm.AT_ITS_LIMIT, "", share
        return (MissForm.MISCONFIGURED if setting else MissForm.OUTSIDE), setting, share

    def _is_impossible(self, book: ClassBook) -> bool:
        cost, misses = self.cost, book.misses
        if cost is None or not misses:
            return False
        slow_alone = gap_alone_ns(cost) > book.target.itl_ns
        impossible = sum(
            (
                one.what is Missed.FIRST_TOKEN
                and alone_ns(cost, one.computed_tokens) > book.target.ttft_ns
            )
            or (one.what is Missed.TOKENS and slow_alone)
            for one in misses
        )
        return impossible > IMPOSSIBLE_SHARE * len(misses)

    def binding(self, book: ClassBook, parts: Counter[str]) -> str:
        """The limit that takes most of the time of late requests; else the one that refuses most of
        those that missed. Empty where neither is one. A full queue is what a limit behind it makes,
        so refusals come second."""
        total = parts.total()
        waits: Counter[str] = Counter()
        for name, reason in zip(WAITS, WaitReason, strict=True):
            if reason in _SETTING_OF_WAIT:
                waits[_SETTING_OF_WAIT[reason]] += parts[name]
        worst, waited_ns = waits.most_common(1)[0]
        if total and waited_ns > BINDS * total:
            return worst
        return self._by_refusals(book) or self._by_step_length(book, parts)

    def _by_refusals(self, book: ClassBook) -> str:
        refused = sum(one.what is Missed.UNSERVED for one in book.misses)
        ended = self.recent.counts.ended
        reason = max(_SETTING_OF_REFUSAL, key=lambda one: ended[one])
        is_most = 2 * refused > len(book.misses)
        return _SETTING_OF_REFUSAL[reason] if is_most and ended[reason] else ""

    def _by_step_length(self, book: ClassBook, parts: Counter[str]) -> str:
        """Steps are longer than the target because they may be; or so short that a prompt needs
        many, and most of its time is their fixed cost."""
        cost, started, total = self.cost, self.recent.started, parts.total()
        if cost is None or started is None or not total:
            return ""
        target_ns = min(book.target.itl_ns, book.target.ttft_ns)
        has_long_steps = not started.auto_budget and _longest_step_ns(cost, started) > target_ns
        if parts[PROMPTS] + parts[NEXT_STEP] > BINDS * total and has_long_steps:
            return _BUDGET
        full_batch_ns = cost.base_ns + started.max_seqs * cost.decode_row_ns
        if parts[DECODES] > BINDS * total and full_batch_ns > target_ns:
            return _SEQS
        fixed_ns = parts[BASE] + parts[HOST]
        is_fixed = fixed_ns > max(parts[OWN_PREFILL], BINDS * total)
        return _BUDGET if is_fixed and not started.auto_budget else ""


def _cache_tokens(started: EngineStarted) -> int:
    """Tokens that the cache holds, as the engine itself says it, if it does: where layers are of
    several kinds, a sequence has blocks of each, so that there is room for less than all blocks
    would hold."""
    told = started.settings.get(_CACHE_SIZE, "")
    is_number = told.isdecimal() and len(told) < _DIGITS
    return int(told) if is_number else started.blocks_total * started.block_tokens


def _longest_step_ns(cost: StepCostSet, started: EngineStarted) -> float:
    """A step that is full of prompt tokens."""
    tokens = started.budget_tokens if started.chunked_prefill else started.max_model_tokens
    return alone_ns(cost, tokens)
