"""What is put back, one thing at a time: differences between a window and its reference.

An intervention takes away only what the window has and the reference had not. What helps any
engine at any time, such as a tenth of the traffic less, would "explain" every window, healthy
ones too; so where nothing differs, there is no intervention.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, pstdev

from diagnosis.root_cause.prefixes import found_as_before
from diagnosis.root_cause.question import Question, Span, arrivals
from diagnosis.root_cause.slowness import (
    Calm,
    without_masks,
    without_residual,
    without_samples,
    without_stalls,
)
from lab.replay.noise import RecordedNoise
from lab.replay.recorded import RecordedRun, RecordedSequence
from lab.replay.replay_modelled import Change
from service.engine.inbox import Command, FlushCache, Pause
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestEnded
from telemetry.numbers.quantiles import quantile_sorted

# a difference smaller than this is none
_DEMAND_FLOOR = 1.15
_LENGTH_FLOOR = 1.5
_GROWN = 1.2
_TENANT_FLOOR = 1.5
_SIGMAS = 2.5
_OUTLIVED_NS = 200_000_000
_ROOM = 8


class Cause(StrEnum):
    """What an intervention takes away, and so the cause that it tests."""

    DEMAND = "demand"  # requests a second, beyond the reference
    TENANT = "tenant"  # the same, of the one tenant whose demand grew most
    PROMPTS = "prompts"  # prompts longer than the reference's
    OUTPUTS = "outputs"  # the same of outputs
    CHUNKS = "chunks"  # prompts computed in one piece
    KV = "kv"  # blocks of the cache are too few
    SLOTS = "slots"  # more sequences in a batch than before
    BUDGET = "budget"  # fewer tokens in a step than before
    STALLS = "stalls"  # the loop stood still between steps
    RESIDUAL = "residual"  # steps took longer than what they computed costs
    MASKS = "masks"  # masks of constrained rows
    SAMPLES = "samples"  # choosing tokens takes longer, or more choices are asked for
    PREFIX = "prefix"  # the prefix cache was emptied, or prompts begin otherwise
    ZOMBIES = "zombies"  # sequences whose client had gone
    PAUSES = "pauses"  # readers so slow that their sequences were held


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What interventions change; edits add up. `prompts` and `outputs` are the most tokens that
    sequences have of each, `prefixes` names of blocks with which their prompts begin."""

    limits: dict[str, object] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    prompts: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    prefixes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    pauses: bool = True
    flushes: bool = True
    cancels: tuple[tuple[int, int], ...] = ()
    calm: tuple[Calm, ...] = ()

    def __or__(self, other: Edit) -> Edit:
        return Edit(
            limits={**self.limits, **other.limits},
            without=self.without | other.without,
            prompts=_least(self.prompts, other.prompts),
            outputs=_least(self.outputs, other.outputs),
            prefixes={**self.prefixes, **other.prefixes},
            pauses=self.pauses and other.pauses,
            flushes=self.flushes and other.flushes,
            cancels=(*self.cancels, *other.cancels),
            calm=(*self.calm, *other.calm),
        )

    def change(self, question: Question) -> Change:
        """For a replay with the noise that was recorded."""
        disturbances = question.cost.disturbances
        for calm in self.calm:
            disturbances = calm(disturbances)
        limits = dataclasses.replace(question.run.limits, **self.limits)  # type: ignore[arg-type]
        return Change(
            limits=limits,
            without=self.without,
            prompts=self.prompts,
            outputs=self.outputs,
            prefixes=self.prefixes,
            pauses=self.pauses,
            flushes=self.flushes,
            cancels=self.cancels,
            noise=RecordedNoise(disturbances),
        )


def _least(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {**one, **other, **{key: min(one[key], other[key]) for key in one.keys() & other.keys()}}


def interventions(question: Question) -> dict[Cause, Edit]:
    """Those for which window and reference differ."""
    found = {
        Cause.DEMAND: _demand(question),
        Cause.TENANT: _tenant(question),
        Cause.PROMPTS: _prompts(question),
        Cause.OUTPUTS: _outputs(question),
        Cause.CHUNKS: _chunks(question),
        Cause.KV: _blocks(question),
        Cause.SLOTS: _slots(question),
        Cause.BUDGET: _budget(question),
        Cause.STALLS: _calm(without_stalls(question)),
        Cause.RESIDUAL: _calm(without_residual(question)),
        Cause.MASKS: _calm(without_masks(question)),
        Cause.SAMPLES: _samples(question),
        Cause.PREFIX: _prefix(question),
        Cause.ZOMBIES: _zombies(question),
        Cause.PAUSES: _pauses(question),
    }
    return {cause: edit for cause, edit in found.items() if edit is not None}


# Each of them: an Edit, or None where nothing differs


def _demand(question: Question) -> Edit | None:
    """As many requests a second as there were; how large they are is for others to say."""
    if question.reference is None:
        return None
    came = arrivals(question.run, question.window)
    expected = _expected(question, question.reference, None)
    if not _is_more(len(came), expected, _DEMAND_FLOOR):
        return None
    return Edit(without=_surplus(came, expected))


def _tenant(question: Question) -> Edit | None:
    """Only where there are others to suffer from it."""
    reference = question.reference
    if reference is None:
        return None
    came = arrivals(question.run, question.window)
    by_tenant = Counter(one.entry.tenant for one in came)
    if len(by_tenant) < 2:
        return None
    usual = {tenant: _expected(question, reference, tenant) for tenant in by_tenant}
    worst = max(by_tenant, key=lambda tenant: by_tenant[tenant] - usual[tenant])
    expected = usual[worst]
    if not _is_more(by_tenant[worst], expected, _TENANT_FLOOR):
        return None
    return Edit(without=_surplus([o for o in came if o.entry.tenant == worst], expected))


def _expected(question: Question, reference: Span, tenant: str | None) -> float:
    """Requests that the window would have at the reference's rate, of one tenant or of all."""
    before = arrivals(question.run, reference)
    mine = [one for one in before if tenant is None or one.entry.tenant == tenant]
    return len(mine) * question.window.seconds / reference.seconds


def _is_more(count: int, expected: float, floor: float) -> bool:
    """By enough, and by more than arrivals that know nothing of each other vary."""
    return count > floor * expected and count > expected + _SIGMAS * math.sqrt(max(1.0, expected))


def _surplus(came: Sequence[RecordedSequence], expected: float) -> frozenset[int]:
    """Whom to leave out so that no more than `expected` come, evenly."""
    share, due, gone = expected / len(came), 0.5, set[int]()
    for one in came:
        due += share
        if due >= 1:
            due -= 1
        else:
            gone.add(one.seq_id)
    return frozenset(gone)


def _prompts(question: Question) -> Edit | None:
    if question.reference is None:
        return None
    before = [one.entry.prompt_tokens for one in arrivals(question.run, question.reference)]
    came = arrivals(question.run, question.window)
    shorter = _as_before({one.seq_id: one.entry.prompt_tokens for one in came}, before)
    return Edit(prompts=shorter) if shorter else None


def _outputs(question: Question) -> Edit | None:
    """One that had not ended counts with what was asked for, if others had as much."""
    if question.reference is None:
        return None
    ends = (one.end for one in arrivals(question.run, question.reference))
    before = [end.output_tokens for end in ends if end is not None]
    came = arrivals(question.run, question.window)
    now = {one.seq_id: one.end.output_tokens for one in came if one.end is not None}
    longest = max(now.values(), default=0)
    now |= {one.seq_id: min(one.entry.max_tokens, longest) for one in came if one.end is None}
    shorter = _as_before(now, before)
    return Edit(outputs=shorter) if shorter else None


def _as_before(now: dict[int, int], before: list[int]) -> dict[int, int]:
    """Each sequence's length as the one of the same rank had it in the reference, where it has
    clearly grown; none where neither the longest nor all of them together have."""
    if not before or not now:
        return {}
    usual, order = sorted(before), sorted(now, key=lambda seq_id: now[seq_id])
    if not _has_longer_tail(now[order[-1]], usual) and not _are_longer(now.values(), usual):
        return {}
    step = len(usual) / len(order)
    ranked = {seq_id: usual[int((rank + 0.5) * step)] for rank, seq_id in enumerate(order)}
    return {seq_id: to for seq_id, to in ranked.items() if now[seq_id] > _GROWN * to}


def _has_longer_tail(longest: int, usual: Sequence[int]) -> bool:
    return longest >= _LENGTH_FLOOR * (quantile_sorted(usual, 0.99) or 0)


def _are_longer(now: Collection[int], usual: Collection[int]) -> bool:
    """On average, by enough, and by more than chance makes of as many."""
    more = fmean(now) - fmean(usual)
    error = pstdev(usual) * math.sqrt(1 / len(now) + 1 / len(usual))
    return more > (_DEMAND_FLOOR - 1) * fmean(usual) and more > _SIGMAS * error


def _chunks(question: Question) -> Edit | None:
    chunked = question.run.limits.chunked_prefill
    return None if chunked else Edit(limits={"chunked_prefill": True})


def _blocks(question: Question) -> Edit:
    """As many as usual, or many more; whether anybody waited for one is for the replay to say."""
    blocks, usual = question.run.limits.blocks_total, question.usual
    if usual is not None and usual.blocks_total > blocks:
        return Edit(limits={"blocks_total": usual.blocks_total})
    return Edit(limits={"blocks_total": _ROOM * blocks})


def _slots(question: Question) -> Edit | None:
    usual = question.usual
    if usual is None or usual.max_seqs >= question.run.limits.max_seqs:
        return None
    return Edit(limits={"max_seqs": usual.max_seqs})


def _budget(question: Question) -> Edit | None:
    usual = question.usual
    if usual is None or usual.budget_tokens <= question.run.limits.budget_tokens:
        return None
    return Edit(limits={"budget_tokens": usual.budget_tokens})


def _calm(calm: Calm | None) -> Edit | None:
    return None if calm is None else Edit(calm=(calm,))


def _samples(question: Question) -> Edit | None:
    calm, fewer = without_samples(question), _fewer_choices(question)
    if calm is None and not fewer:
        return None
    return Edit(calm=() if calm is None else (calm,), outputs=fewer)


def _fewer_choices(question: Question) -> dict[int, int]:
    """Of requests with more choices than those of the reference had, the last ones end with their
    first token: next to nothing, since all share a prompt."""
    if question.reference is None:
        return {}
    before = [len(mine) for mine in _choices(question.run, question.reference).values()]
    now = _choices(question.run, question.window)
    usual = _as_before({mine[0]: len(mine) for mine in now.values()}, before)
    return {seq_id: 1 for mine in now.values() for seq_id in mine[usual.get(mine[0], len(mine)) :]}


def _choices(run: RecordedRun, span: Span) -> dict[str, list[int]]:
    """Sequences by request, those of one that is not known apart."""
    owners = run.owners
    found: dict[str, list[int]] = {}
    for one in arrivals(run, span):
        found.setdefault(owners.get(one.seq_id, f"sequence {one.seq_id}"), []).append(one.seq_id)
    return found


def _prefix(question: Question) -> Edit | None:
    commands = _commands(question.run, question.run.started.at_ns, question.window.end_ns)
    if any(isinstance(command, FlushCache) for command in commands):
        return Edit(flushes=False)
    prefixes = found_as_before(question)
    return Edit(prefixes=prefixes) if prefixes else None


def _zombies(question: Question) -> Edit | None:
    """Who hung up is gone at once."""
    run = question.run
    owners = run.owners
    gone_ns = {
        fact.request_id: fact.detected_ns if fact.detected_ns is not None else fact.at_ns
        for fact in run.others
        if isinstance(fact, RequestEnded) and fact.reason is EndReason.DISCONNECT
    }
    cancels: list[tuple[int, int]] = []
    for seq_id, sequence in run.sequences.items():
        left_ns = gone_ns.get(owners.get(seq_id, ""))
        if left_ns is not None and _outlived(sequence.end, left_ns):
            cancels.append((left_ns, seq_id))
    return Edit(cancels=tuple(cancels)) if cancels else None


def _outlived(end: SequenceEnded | None, left_ns: int) -> bool:
    return end is None or end.at_ns - left_ns > _OUTLIVED_NS


def _pauses(question: Question) -> Edit | None:
    commands = _commands(question.run, question.window.begin_ns, question.window.end_ns)
    paused = any(isinstance(command, Pause) for command in commands)
    return Edit(pauses=False) if paused else None


def _commands(run: RecordedRun, begin_ns: int, end_ns: int) -> Iterator[Command]:
    """What came from outside in [begin, end)."""
    for turn in run.iterations:
        if begin_ns <= turn.at_ns < end_ns:
            yield from turn.commands
