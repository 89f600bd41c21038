"""Which causes can be told, from what, and how surely: the one table of the importers.

A cause has *ways* to tell it, the surest first. A way needs things that the evidence holds; a kind
that holds none of a cause's needs cannot tell it. The judge uses the same table, with what a file
really holds.
"""

from __future__ import annotations

from typing import NamedTuple

from diagnosis.importers.kinds import KINDS, Certainty, Kind, Seen
from diagnosis.symptoms import Symptom


class Way(NamedTuple):
    """One way to detect a cause: what evidence it `needs`, how certain it is, and `open_to`, the
    causes that look the same in that evidence."""

    needs: frozenset[Seen]
    certainty: Certainty
    open_to: tuple[Symptom, ...] = ()


class Told(NamedTuple):
    """Whether a cause can be told; without a way, `missing` says what that would take."""

    symptom: Symptom
    way: Way | None
    missing: str = ""


S = Symptom

SLOW_STEPS = (
    S.MEMORY_BANDWIDTH, S.THROTTLED, S.CPU_STARVATION, S.HOST_STALL, S.GRAMMAR_COST,
    S.HEAVY_SAMPLING,
)  # fmt: skip
"""All make steps longer that compute the same; no kind of evidence here tells them apart."""
ON_HOST = (S.HOST_STALL, S.CPU_STARVATION, S.GRAMMAR_COST, S.HEAVY_SAMPLING)
ON_DEVICE = (S.MEMORY_BANDWIDTH, S.THROTTLED)

_QUEUE, _HITS = Seen.QUEUE_TIME, Seen.PREFIX_HITS
_LIKE_OVERLOAD = (S.UNFAIRNESS, S.CANCELLATION_LEAK)
_BESIDE = frozenset({Seen.TOKEN_TIME, Seen.OVERLAP})
_AGGREGATES = frozenset({Seen.TOKEN_TIME, Seen.RUNNING, _HITS})
_STEPS = frozenset({Seen.STEPS, Seen.TOKEN_TIME})
_PROMPTS = frozenset({Seen.PREFILL_TIME, Seen.PROMPT_TOKENS})

WAYS: dict[Symptom, tuple[Way, ...]] = {
    S.QUEUE_OVERLOAD: (
        Way(frozenset({_QUEUE, Seen.RATE, Seen.KV_USAGE}), Certainty.MEASURED, _LIKE_OVERLOAD),
        Way(frozenset({Seen.WAITING, Seen.KV_USAGE}), Certainty.LIKELY, _LIKE_OVERLOAD),
        Way(frozenset({_QUEUE, Seen.RATE}), Certainty.LIKELY, (S.KV_EXHAUSTION, *_LIKE_OVERLOAD)),
        Way(frozenset({Seen.WAITING}), Certainty.LIKELY, (S.KV_EXHAUSTION, *_LIKE_OVERLOAD)),
    ),
    S.KV_EXHAUSTION: (
        Way(
            frozenset({Seen.WAITING, Seen.RUNNING, Seen.KV_USAGE}), Certainty.MEASURED,
            (S.SLOW_CLIENT, S.CANCELLATION_LEAK),
        ),
    ),
    S.KV_THRASH: (
        Way(frozenset({Seen.PREEMPTIONS}), Certainty.COUNTED),
        Way(frozenset({Seen.STOPPED}), Certainty.LIKELY, (S.QUEUE_OVERLOAD,)),
    ),
    S.LONG_PROMPTS: (
        Way(_PROMPTS | {_HITS}, Certainty.MEASURED),
        Way(_PROMPTS, Certainty.LIKELY, (S.PREFIX_CACHE_COLD,)),
    ),
    S.PREFIX_CACHE_COLD: (Way(_PROMPTS | {_HITS}, Certainty.MEASURED),),
    S.PREFILL_INTERFERENCE: (
        Way(_STEPS, Certainty.MEASURED),
        Way(_BESIDE | {_HITS}, Certainty.LIKELY, (S.OVERSIZED_BATCH, *SLOW_STEPS)),
        Way(
            _BESIDE, Certainty.LIKELY, (S.OVERSIZED_BATCH, S.PREFIX_CACHE_COLD, *SLOW_STEPS)
        ),
        Way(_AGGREGATES, Certainty.LIKELY, (S.OVERSIZED_BATCH, *SLOW_STEPS)),
    ),
    S.OVERSIZED_BATCH: (
        Way(_STEPS, Certainty.LIKELY, SLOW_STEPS),
        Way(_BESIDE, Certainty.LIKELY, (S.PREFILL_INTERFERENCE, *SLOW_STEPS)),
        Way(_AGGREGATES, Certainty.LIKELY, (S.PREFILL_INTERFERENCE, *SLOW_STEPS)),
    ),
    S.INGEST_BACKLOG: (Way(frozenset({Seen.FRONT_TIME}), Certainty.LIKELY, (S.SLOW_CLIENT,)),),
    S.ENGINE_HUNG: (
        Way(frozenset({Seen.PROGRESS, Seen.RUNNING}), Certainty.LIKELY, (S.HOST_STALL,)),
    ),
    S.STEP_FAILURE: (Way(frozenset({Seen.FAILURES}), Certainty.LIKELY, (S.OUT_OF_MEMORY,)),),
    S.TELEMETRY_DEGRADED: (Way(frozenset({Seen.RECORD_NUMBERS}), Certainty.COUNTED),),
}  # fmt: skip

_STEP_PARTS = "the parts of each step: forward pass, sampling, masks, and the host between them"
NEVER: dict[Symptom, str] = {
    S.MEMORY_BANDWIDTH: "what each step computed, with the CPU time of the engine in it",
    S.THROTTLED: "clocks, power and quota of the processor, beside the length of each step",
    S.HOST_STALL: _STEP_PARTS,
    S.CPU_STARVATION: "how long the engine's thread was ready without a CPU",
    S.GRAMMAR_COST: _STEP_PARTS,
    S.HEAVY_SAMPLING: _STEP_PARTS,
    S.ADAPTER_CHURN: "when adapters were loaded and evicted, and who waited for them",
    S.INVALID_OUTPUT: "whether constrained answers obey their constraint",
    S.SLOW_CLIENT: "when each piece of an answer left, and was taken",
    S.CANCELLATION_LEAK: "when clients disconnected, and rows that were computed after it",
    S.UNFAIRNESS: "whose request each is",
    S.OUT_OF_MEMORY: "why a step failed",
    S.LOAD_FAILURE: "how the start went",
    S.BUDGET_TOO_SMALL: "the token budget in force, and the fixed cost of a step",
    S.SLO_MISSED: "the objectives, and the longest gap of each request",
}
"""What would be needed for those that no kind of evidence here can tell."""


def told_by(symptom: Symptom, seen: frozenset[Seen]) -> Told:
    """The surest way with what is seen, or what is missing for the nearest one."""
    ways = WAYS.get(symptom, ())
    for way in ways:
        if way.needs <= seen:
            return Told(symptom, way)
    if not ways:
        return Told(symptom, None, NEVER[symptom])
    nearest = min(ways, key=lambda way: len(way.needs - seen))
    missing = [one.value for one in Seen if one in nearest.needs - seen]
    return Told(symptom, None, ", ".join(missing))


def all_told(seen: frozenset[Seen]) -> list[Told]:
    """Every cause, in the order of `Symptom`."""
    return [told_by(symptom, seen) for symptom in Symptom]


def told_by_kind(kind: Kind) -> list[Told]:
    """What a full record of this kind can tell."""
    return all_told(KINDS[kind].seen)
