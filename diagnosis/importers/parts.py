"""How the lateness of a stretch divides: into queue, prefill, tokens, front end, and their reasons.

All parts are of one scale, so that they can be compared: ms of a request where requests are known,
requests that are delayed in the mean where only steps are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diagnosis.importers.kinds import Seen
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Measures, Record
from diagnosis.importers.thresholds import (
    CACHED_FELL,
    DEMAND_GREW,
    HITS_FELL,
    LEAST_CHANGE,
    LEAST_GROWTH,
    LENGTHS_GREW,
)
from diagnosis.importers.windows import Change


class Part(StrEnum):
    """Where time is lost, and with what it goes."""

    FRONT = "before the queue"
    QUEUE = "in the queue"
    LONGER_PROMPTS = "prefill of longer prompts"
    FEWER_HITS = "prefill of what was cached"
    PREFILL = "prefill beyond its tokens"
    TOKENS_BY_PROMPTS = "tokens, beside others' prompts"
    TOKENS_BY_MISSES = "tokens, beside prompts that were cached"
    TOKENS_BY_BATCH = "tokens, in fuller batches"
    TOKENS = "tokens, for another reason"


@dataclass(frozen=True)
class Case:
    """Two stretches of a record. Without a comparison `usual` is empty, and `now` the whole."""

    record: Record
    now: Measures
    usual: Measures
    changes: Mapping[Q, float] = field(default_factory=dict)
    explained: Measures = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record, change: Change | None) -> Case:
        if change is None:
            return cls(record, record.measure([record.span]), {})
        return cls(
            record,
            record.measure(change.now),
            record.measure(change.usual),
            change.changes,
            record.explained(change.now, change.usual),
        )

    @property
    def is_compared(self) -> bool:
        return bool(self.usual)

    def more(self, name: Q) -> float:
        """How much a series grew, 0 where the change is none."""
        if name not in self.now or name not in self.usual:
            return 0.0
        now, usual = self.now[name], self.usual[name]
        is_change = self.changes.get(name, 0.0) >= LEAST_CHANGE and now >= LEAST_GROWTH * usual
        return now - usual if is_change else 0.0

    def ratio(self, name: Q) -> float | None:
        """How many times as large a series is now as usual; None where one of both is not measured,
        or was 0."""
        if name not in self.now or not self.usual.get(name):
            return None
        return self.now[name] / self.usual[name]

    @property
    def demand_ratio(self) -> float | None:
        """How many times as many tokens are asked for in a second as usual; None where that is
        unknown."""
        rate = self.ratio(Q.REQUESTS_PER_S)
        if rate is None:
            return None
        before, after = _tokens(self.usual), _tokens(self.now)
        return rate * (after / before if before and after else 1.0)

    @property
    def prompts_grew(self) -> bool | None:
        """Whether more prompt tokens a second are to be computed; None where that is unknown."""
        rate, before, after = (
            self.ratio(Q.REQUESTS_PER_S),
            _computed(self.usual),
            _computed(self.now),
        )
        if rate is None or not before or after is None:
            return None
        return rate * after / before >= DEMAND_GREW

    @property
    def answers_grew(self) -> bool | None:
        """Whether more output tokens a second are asked for; None where that is unknown."""
        rate, each = self.ratio(Q.REQUESTS_PER_S), self.ratio(Q.OUTPUT_EACH)
        return None if rate is None else rate * (each or 1.0) >= DEMAND_GREW

    @property
    def demand_grew(self) -> bool | None:
        ratio = self.demand_ratio
        return None if ratio is None else ratio >= DEMAND_GREW


def parts_of(case: Case) -> dict[Part, float]:
    """The parts that are larger than nothing."""
    found = {Part.FRONT: case.more(Q.FRONT_EACH), **_of_queue(case), **_of_prefill(case),
             **_of_tokens(case)}  # fmt: skip
    by_misses = found.pop(Part.TOKENS_BY_MISSES, 0.0)
    found[Part.FEWER_HITS] = found.get(Part.FEWER_HITS, 0.0) + by_misses
    return {part: lost for part, lost in found.items() if lost > 0}


def _is_of_requests(case: Case) -> bool:
    return Seen.STEPS not in case.record.seen


def _of_queue(case: Case) -> dict[Part, float]:
    series = Q.QUEUE_EACH if _is_of_requests(case) else Q.WAITING
    return {Part.QUEUE: case.more(series)}


def _of_prefill(case: Case) -> dict[Part, float]:
    """The parts of longer prefill. As much of it as the tokens to compute grew by is explained by
    longer prompts, or fewer of them cached. The rest is slower prefill."""
    more = case.more(Q.PREFILL_EACH)
    prompt, before = case.now.get(Q.PROMPT_EACH), case.usual.get(Q.PROMPT_EACH)
    if not more or not prompt or not before:
        return {Part.PREFILL: more}
    hits_before = case.usual.get(Q.HIT_SHARE, 0.0)
    longer = (prompt - before) * (1 - hits_before) if prompt >= LENGTHS_GREW * before else 0.0
    missed = _missed_each(case)
    computed = max(1.0, before * (1 - hits_before))
    explained = min(more, case.usual[Q.PREFILL_EACH] * (longer + missed) / computed)
    if not longer + missed:
        return {Part.PREFILL: more}
    return {
        Part.LONGER_PROMPTS: explained * longer / (longer + missed),
        Part.FEWER_HITS: explained * missed / (longer + missed),
        Part.PREFILL: more - explained,
    }


def _of_tokens(case: Case) -> dict[Part, float]:
    """A longer time per token, of all tokens after the first."""
    more = case.more(Q.TOKEN_EACH)
    if not more:
        return {}
    if _is_of_requests(case):
        lost = more * max(1.0, case.now.get(Q.OUTPUT_EACH, 1.0) - 1)
    else:
        lost = case.now.get(Q.RUNNING, 1.0) * more / case.now[Q.TOKEN_EACH]
    by_prompts = case.explained.get(Q.BY_PROMPTS, 0.0)
    by_batch = case.explained.get(Q.BY_BATCH, 0.0)
    whole = by_prompts + by_batch + case.explained.get(Q.BY_NEITHER, 0.0)
    if not whole:
        return {Part.TOKENS: lost}
    missed = _missed_share(case)
    return {
        Part.TOKENS_BY_PROMPTS: lost * by_prompts / whole * (1 - missed),
        Part.TOKENS_BY_MISSES: lost * by_prompts / whole * missed,
        Part.TOKENS_BY_BATCH: lost * by_batch / whole,
        Part.TOKENS: lost * (whole - by_prompts - by_batch) / whole,
    }


def _missed_each(case: Case) -> float:
    """Prompt tokens of a request that would have been cached. Where about as many are cached in a
    second as before, none are missed: prompts that never were cached came as well."""
    fell = case.usual.get(Q.HIT_SHARE, 0.0) - case.now.get(Q.HIT_SHARE, 0.0)
    prompts, prompt = case.ratio(Q.PROMPT_EACH), case.now.get(Q.PROMPT_EACH)
    if fell < HITS_FELL or prompts is None or prompt is None:
        return 0.0
    rate = case.ratio(Q.REQUESTS_PER_S) or 1.0
    hits = case.ratio(Q.HIT_SHARE) or 0.0
    most = CACHED_FELL if prompts >= LENGTHS_GREW else 1 - HITS_FELL
    return prompt * fell if rate * prompts * hits <= most else 0.0


def _missed_share(case: Case) -> float:
    """The share of missed cache hits in the prompt tokens that are computed beyond the usual."""
    rate, before, now = case.ratio(Q.REQUESTS_PER_S), _computed(case.usual), _computed(case.now)
    if rate is None or before is None or now is None:
        return 0.0
    grown = rate * now - before
    return min(1.0, rate * _missed_each(case) / grown) if grown > 0 else 0.0


def _tokens(measured: Measures) -> float | None:
    """Computed for a request."""
    prompt, output = _computed(measured), measured.get(Q.OUTPUT_EACH)
    return None if prompt is None or output is None else prompt + output


def _computed(measured: Measures) -> float | None:
    """Prompt tokens that are not cached, of a request."""
    prompt = measured.get(Q.PROMPT_EACH)
    return None if prompt is None else prompt * (1 - measured.get(Q.HIT_SHARE, 0.0))
