"""Requests that cannot meet their target even alone on an idle engine, whatever its settings.

The first token of a request needs its prompt computed. In one step that takes the least: every
further step costs its base again. A gap between tokens is at least one decode step of its own. What
an earlier request with the same beginning may have left in the prefix cache is not counted, even
where the cache was off.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lab.replay.iteration_cost import IterationCost
from lab.replay.recorded import RecordedRun
from telemetry.costs.step_load import StepLoad, attention_pairs
from telemetry.facts.engine_records import SequenceQueued
from telemetry.facts.records import RequestAccepted
from telemetry.requests.slo_policy import SloClass, SloPolicy


@dataclass(frozen=True, slots=True)
class Impossible:
    """`reasons` and `requests` by class."""

    reasons: dict[str, str]
    requests: dict[str, frozenset[str]]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset().union(*self.requests.values())


@dataclass(frozen=True, slots=True)
class _Alone:
    """The least ns of a request's first token and of a gap, and its prompt tokens."""

    first_token_ns: int
    gap_ns: int
    prompt_tokens: int


def impossible_of(
    run: RecordedRun, cost: IterationCost, policy: SloPolicy, missed: Collection[str]
) -> Impossible:
    """Which of the requests in `missed` would be late alone on this machine."""
    classes = {
        fact.request_id: policy.of(fact.slo_class)
        for fact in run.others
        if isinstance(fact, RequestAccepted) and fact.request_id in missed
    }
    found: dict[str, dict[str, _Alone]] = {}
    cached = _cached_tokens(run)
    for seq_id, request_id in run.owners.items():
        target, sequence = classes.get(request_id), run.sequences.get(seq_id)
        if target is None or sequence is None:
            continue
        tokens = sequence.entry.prompt_tokens
        alone = _alone(cost, tokens, cached.get(seq_id, 0))
        if alone.first_token_ns > target.ttft_ns or alone.gap_ns > target.itl_ns:
            found.setdefault(target.name, {})[request_id] = alone
    return Impossible(
        reasons={
            name: _reason(policy.classes[name], list(mine.values())) for name, mine in found.items()
        },
        requests={name: frozenset(mine) for name, mine in found.items()},
    )


def _alone(cost: IterationCost, prompt_tokens: int, cached_tokens: int) -> _Alone:
    computed = max(1, prompt_tokens - cached_tokens)
    prompt = StepLoad(
        prompt_tokens=computed,
        pairs=attention_pairs(computed, prompt_tokens - computed),
        sampled_rows=1,
    )
    decode = StepLoad(decode_tokens=1, decode_rows=1, context_tokens=prompt_tokens, sampled_rows=1)
    return _Alone(cost.wake_ns + cost.step_ns(prompt), cost.step_ns(decode), prompt_tokens)


def _cached_tokens(run: RecordedRun) -> dict[int, int]:
    """How many tokens at the beginning of each sequence an earlier sequence had, too."""
    seen: set[int] = set()
    found: dict[int, int] = {}
    for seq_id, sequence in run.sequences.items():
        if isinstance(sequence.entry, SequenceQueued):
            blocks = sequence.block_aliases
            same = 0
            while same < len(blocks) and blocks[same] in seen:
                same += 1
            found[seq_id] = same * run.limits.block_tokens
            seen.update(blocks)
    return found


def _reason(target: SloClass, alone: list[_Alone]) -> str:
    firsts = sorted(one.first_token_ns for one in alone if one.first_token_ns > target.ttft_ns)
    if firsts:
        tokens = sorted(one.prompt_tokens for one in alone if one.first_token_ns > target.ttft_ns)
        return (
            f"{len(firsts)} requests of {_range(tokens)} prompt tokens need "
            f"{_range([ns // 1_000_000 for ns in firsts])} ms to their first token alone on an "
            f"idle engine; the target is {target.ttft_ns / 1e6:g} ms"
        )
    gaps = sorted(one.gap_ns for one in alone)
    return (
        f"{len(gaps)} requests need {_range([ns // 1_000_000 for ns in gaps])} ms for a token "
        f"alone on an idle engine; the target is {target.itl_ns / 1e6:g} ms"
    )


def _range(ordered: list[int]) -> str:
    least, most = ordered[0], ordered[-1]
    return f"{least}" if least == most else f"{least} to {most}"
