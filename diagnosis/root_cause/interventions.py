"""Interventions: differences between a window and its reference, removed one at a time.

An intervention removes only what the window has and the reference had not. What helps any engine at
any time, such as a tenth less traffic, would "explain" every window, healthy ones too; so where
nothing differs, there is no intervention.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean, pstdev

from diagnosis.attribution.thresholds import DEMAND_SIGMAS, GROWN_DEMAND, GROWN_LENGTH, SIGMAS
from diagnosis.root_cause.adapters import room_for_adapters
from diagnosis.root_cause.limits import (
    chunked_prefill,
    fewer_slots,
    is_possible,
    larger_budget,
    more_blocks,
    with_limits,
)
from diagnosis.root_cause.prefixes import restored_prefixes
from diagnosis.root_cause.question import Question, arrivals
from diagnosis.root_cause.slowness import (
    NoiseFilter,
    without_masks,
    without_residual,
    without_samples,
    without_stalls,
)
from diagnosis.root_cause.thresholds import TENANT_RATE
from diagnosis.spans import Span
from diagnosis.thresholds import ABORT_NS, LONGEST_QUANTILE
from lab.replay.noise import RecordedNoise
from lab.replay.recorded import RecordedRun, RecordedSequence
from lab.replay.replay_modelled import Change
from service.engine.inbox import Command, FlushCache, Pause
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestEnded
from telemetry.numbers.quantiles import quantile_sorted


class Cause(StrEnum):
    """What an intervention removes, and so the cause that it tests."""

    DEMAND = "demand"  # requests a second beyond the reference
    TENANT = "tenant"  # the same, of the tenant whose rate grew most
    PROMPTS = "prompts"  # longer prompts than in the reference
    OUTPUTS = "outputs"  # longer outputs than in the reference
    CHUNKS = "chunks"  # prefill is not chunked
    KV = "kv"  # blocks of the cache are too few
    ADAPTERS = "adapters"  # memory for adapters is too small for those that are asked for
    SLOTS = "slots"  # more sequences in a batch than before
    BUDGET = "budget"  # fewer tokens in a step than before
    STALLS = "stalls"  # the loop stood still between steps
    RESIDUAL = "residual"  # steps took longer than what they computed costs
    MASKS = "masks"  # masks of constrained rows
    SAMPLES = "samples"  # sampling takes longer, or requests have more choices
    PREFIX = "prefix"  # the prefix cache was flushed, or prompts begin differently
    ZOMBIES = "zombies"  # sequences whose client has disconnected
    PAUSES = "pauses"  # clients so slow that their sequences were paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """Changes to a replay; `|` joins two. `prompts` and `outputs` are the most tokens of each that
    a sequence has, `prefixes` the names of the blocks with which its prompt begins, `without` the
    sequences that are left out, `cancels` (ns, sequence)."""

    limits: dict[str, object] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    prompts: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    prefixes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    pauses: bool = True
    flushes: bool = True
    cancels: tuple[tuple[int, int], ...] = ()
    noise_filters: tuple[NoiseFilter, ...] = ()

    def __or__(self, other: Intervention) -> Intervention:
        return Intervention(
            limits={**self.limits, **other.limits},
            without=self.without | other.without,
            prompts=_smaller(self.prompts, other.prompts),
            outputs=_smaller(self.outputs, other.outputs),
            prefixes={**self.prefixes, **other.prefixes},
            pauses=self.pauses and other.pauses,
            flushes=self.flushes and other.flushes,
            cancels=(*self.cancels, *other.cancels),
            noise_filters=(*self.noise_filters, *other.noise_filters),
        )

    def change(self, question: Question) -> Change:
        """The change of a replay that runs with the recorded noise."""
        disturbances = question.cost.disturbances
        for keep in self.noise_filters:
            disturbances = keep(disturbances)
        return replace(
            with_limits(question, self.limits),
            without=self.without,
            prompts=self.prompts,
            outputs=self.outputs,
            prefixes=self.prefixes,
            pauses=self.pauses,
            flushes=self.flushes,
            cancels=self.cancels,
            noise=RecordedNoise(disturbances),
        )


def _smaller(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {**one, **other, **{key: min(one[key], other[key]) for key in one.keys() & other.keys()}}


def interventions(question: Question) -> dict[Cause, Intervention]:
    """All that window and reference differ in and that an engine could have had, by cause."""
    found = {
        Cause.DEMAND: _demand(question),
        Cause.TENANT: _tenant(question),
        Cause.PROMPTS: _prompts(question),
        Cause.OUTPUTS: _outputs(question),
        Cause.CHUNKS: _limits(question, chunked_prefill(question)),
        Cause.KV: _limits(question, more_blocks(question)),
        Cause.ADAPTERS: _limits(question, room_for_adapters(question)),
        Cause.SLOTS: _limits(question, fewer_slots(question)),
        Cause.BUDGET: _limits(question, larger_budget(question)),
        Cause.STALLS: _filtered(without_stalls(question)),
        Cause.RESIDUAL: _filtered(without_residual(question)),
        Cause.MASKS: _filtered(without_masks(question)),
        Cause.SAMPLES: _samples(question),
        Cause.PREFIX: _prefix(question),
        Cause.ZOMBIES: _zombies(question),
        Cause.PAUSES: _pauses(question),
    }
    return {cause: one for cause, one in found.items() if one is not None}


# each returns None where nothing differs


def _demand(question: Question) -> Intervention | None:
    """The rate of the reference. Their sizes are interventions of their own."""
    if question.reference is None:
        return None
    came = arrivals(question.run, question.window)
    expected = _expected(question, question.reference, None)
    if not _is_more(len(came), expected, GROWN_DEMAND):
        return None
    return Intervention(without=_surplus(came, expected))


def _tenant(question: Question) -> Intervention | None:
    """The rate of the one tenant whose rate grew most, if there is another tenant."""
    reference = question.reference
    if reference is None:
        return None
    came = arrivals(question.run, question.window)
    by_tenant = Counter(one.entry.tenant for one in came)
    if len(by_tenant) < 2:
        return None
    baseline = {tenant: _expected(question, reference, tenant) for tenant in by_tenant}
    worst = max(by_tenant, key=lambda tenant: by_tenant[tenant] - baseline[tenant])
    expected = baseline[worst]
    if not _is_more(by_tenant[worst], expected, TENANT_RATE):
        return None
    return Intervention(without=_surplus([o for o in came if o.entry.tenant == worst], expected))


def _expected(question: Question, reference: Span, tenant: str | None) -> float:
    """Requests in the window at the reference's rate, of one tenant or (None) of all."""
    before = arrivals(question.run, reference)
    mine = [one for one in before if tenant is None or one.entry.tenant == tenant]
    return len(mine) * question.window.seconds / reference.seconds


def _is_more(count: int, expected: float, floor: float) -> bool:
    """Growth by the ratio `floor`, and beyond the variation of independent arrivals (Poisson)."""
    by_chance = DEMAND_SIGMAS * math.sqrt(max(1.0, expected))
    return count > floor * expected and count > expected + by_chance


def _surplus(came: Sequence[RecordedSequence], expected: float) -> frozenset[int]:
    """The sequences to leave out, evenly spaced, so that `expected` remain."""
    share, due, gone = expected / len(came), 0.5, set[int]()
    for one in came:
        due += share
        if due >= 1:
            due -= 1
        else:
            gone.add(one.seq_id)
    return frozenset(gone)


def _prompts(question: Question) -> Intervention | None:
    if question.reference is None:
        return None
    before = [one.entry.prompt_tokens for one in arrivals(question.run, question.reference)]
    came = arrivals(question.run, question.window)
    shorter = _as_before({one.seq_id: one.entry.prompt_tokens for one in came}, before)
    return Intervention(prompts=shorter) if shorter else None


def _outputs(question: Question) -> Intervention | None:
    """A sequence that has not ended counts with its `max_tokens`, up to the longest that ended."""
    if question.reference is None:
        return None
    ends = (one.end for one in arrivals(question.run, question.reference))
    before = [end.output_tokens for end in ends if end is not None]
    came = arrivals(question.run, question.window)
    now = {one.seq_id: one.end.output_tokens for one in came if one.end is not None}
    longest = max(now.values(), default=0)
    now |= {one.seq_id: min(one.entry.max_tokens, longest) for one in came if one.end is None}
    shorter = _as_before(now, before)
    return Intervention(outputs=shorter) if shorter else None


def _as_before(now: dict[int, int], before: list[int]) -> dict[int, int]:
    """Lengths by sequence, cut to the length of the same rank in the reference where they have
    clearly grown; empty where neither the tail nor the mean has grown."""
    if not before or not now:
        return {}
    baseline, order = sorted(before), sorted(now, key=lambda seq_id: now[seq_id])
    if not _has_longer_tail(now[order[-1]], baseline) and not _are_longer(now.values(), baseline):
        return {}
    step = len(baseline) / len(order)
    ranked = {seq_id: baseline[int((rank + 0.5) * step)] for rank, seq_id in enumerate(order)}
    return {seq_id: to for seq_id, to in ranked.items() if now[seq_id] > GROWN_LENGTH * to}


def _has_longer_tail(longest: int, baseline: Sequence[int]) -> bool:
    return longest >= GROWN_LENGTH * (quantile_sorted(baseline, LONGEST_QUANTILE) or 0)


def _are_longer(now: Collection[int], baseline: Collection[int]) -> bool:
    """Growth of the mean, by enough and by more than chance."""
    more = fmean(now) - fmean(baseline)
    error = pstdev(baseline) * math.sqrt(1 / len(now) + 1 / len(baseline))
    return more > (GROWN_LENGTH - 1) * fmean(baseline) and more > SIGMAS * error


def _limits(question: Question, limits: dict[str, object] | None) -> Intervention | None:
    if limits is None or not is_possible(question, limits):
        return None
    return Intervention(limits=limits)


def _filtered(noise_filter: NoiseFilter | None) -> Intervention | None:
    return None if noise_filter is None else Intervention(noise_filters=(noise_filter,))


def _samples(question: Question) -> Intervention | None:
    shorter, fewer = without_samples(question), _fewer_choices(question)
    if shorter is None and not fewer:
        return None
    return Intervention(noise_filters=() if shorter is None else (shorter,), outputs=fewer)


def _fewer_choices(question: Question) -> dict[int, int]:
    """Choices beyond those of the reference end with their first token, which costs next to
    nothing, since all choices share a prompt."""
    if question.reference is None:
        return {}
    before = [len(mine) for mine in _choices(question.run, question.reference).values()]
    now = _choices(question.run, question.window)
    baseline = _as_before({mine[0]: len(mine) for mine in now.values()}, before)
    return {
        seq_id: 1 for mine in now.values() for seq_id in mine[baseline.get(mine[0], len(mine)) :]
    }


def _choices(run: RecordedRun, span: Span) -> dict[str, list[int]]:
    """Sequences by request; one whose request is unknown stands alone."""
    owners = run.owners
    found: dict[str, list[int]] = {}
    for one in arrivals(run, span):
        found.setdefault(owners.get(one.seq_id, f"sequence {one.seq_id}"), []).append(one.seq_id)
    return found


def _prefix(question: Question) -> Intervention | None:
    """A flush before the reference begins cools both it and the window."""
    run, reference = question.run, question.reference
    begin_ns = run.started.at_ns if reference is None else reference.begin_ns
    commands = _commands(run, begin_ns, question.window.end_ns)
    flushed = any(isinstance(command, FlushCache) for command in commands)
    prefixes = restored_prefixes(question)
    return Intervention(flushes=not flushed, prefixes=prefixes) if flushed or prefixes else None


def _zombies(question: Question) -> Intervention | None:
    """Sequences are cancelled at the moment at which their client disconnected."""
    run = question.run
    owners = run.owners
    gone_ns = {
        fact.request_id: fact.detected_ns if fact.detected_ns is not None else fact.at_ns
        for fact in run.others
        if isinstance(fact, RequestEnded) and fact.reason is EndReason.DISCONNECT
    }
    cancels: list[tuple[int, int]] = []
    for seq_id, sequence in run.sequences.items():
        disconnected_ns = gone_ns.get(owners.get(seq_id, ""))
        if disconnected_ns is not None and _outlived(sequence.end, disconnected_ns):
            cancels.append((disconnected_ns, seq_id))
    return Intervention(cancels=tuple(cancels)) if cancels else None


def _outlived(end: SequenceEnded | None, disconnected_ns: int) -> bool:
    return end is None or end.at_ns - disconnected_ns > ABORT_NS


def _pauses(question: Question) -> Intervention | None:
    commands = _commands(question.run, question.window.begin_ns, question.window.end_ns)
    paused = any(isinstance(command, Pause) for command in commands)
    return Intervention(pauses=False) if paused else None


def _commands(run: RecordedRun, begin_ns: int, end_ns: int) -> Iterator[Command]:
    """Commands from outside the engine in [begin, end)."""
    for turn in run.iterations:
        if begin_ns <= turn.at_ns < end_ns:
            yield from turn.commands
