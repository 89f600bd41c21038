"""Charges: amounts by cause, and those of the engine's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diagnosis.detection.counts import Stage
from diagnosis.detection.steps import Steps
from diagnosis.evidence import Facts, Taken
from diagnosis.symptoms import Symptom


class Charges(defaultdict[Symptom, float]):
    """ns, tokens or shares by cause; 0 for a cause that was not added."""

    def __init__(self, known: Mapping[Symptom, float] | None = None) -> None:
        super().__init__(float, known or {})

    def ranked(self) -> list[tuple[Symptom, float]]:
        """The largest first."""
        return sorted(self.items(), key=lambda entry: -entry[1])


Through = dict[tuple[Symptom, Symptom], float]
"""ns of requests' time that a cause took by way of an effect, by (cause, effect)."""


def shares_of(parts: Mapping[Symptom, float]) -> Charges:
    """Each positive part over their sum; empty without one."""
    total = sum(spent for spent in parts.values() if spent > 0)
    return Charges({one: spent / total for one, spent in parts.items() if spent > 0})


@dataclass(slots=True)
class EngineTime:
    """Charges beyond the baseline: `taken_ns` of the engine, `decoding_ns` and `prompting_ns` of
    requests. `beside_ns` is the part of `decoding_ns` beside others' prompts,
    `prompting_total_ns` all of requests' time in steps with their prompts, `busy_ns`
    the engine's in all steps. `slow` is how many times longer than predicted the forward passes in
    range took. `demand_share` of the requests came beyond the baseline, charged to `demand`;
    `longer` are tokens of prompts and answers beyond their usual length, by cause; `fuller_ns` is
    requests' time beside more rows than usual, which nothing explains but their number.
    `by_chance_ns` of the engine's time went to requests that chance brought.
    `claims` say what a device measured, `culprits` which GPU or rank it is; a GPU is sampled if it
    `has_gpu`."""

    taken_ns: Charges = field(default_factory=Charges)
    decoding_ns: Charges = field(default_factory=Charges)
    prompting_ns: Charges = field(default_factory=Charges)
    beside_ns: Charges = field(default_factory=Charges)
    prompting_total_ns: float = 0.0
    busy_ns: float = 0.0
    slow: float = 1.0
    facts: Taken = field(default_factory=dict)
    tenant: str | None = None
    demand: Symptom = Symptom.QUEUE_OVERLOAD
    demand_share: float = 0.0
    longer: Charges = field(default_factory=Charges)
    fuller_ns: float = 0.0
    by_chance_ns: float = 0.0
    has_gpu: bool = False
    claims: dict[Symptom, str] = field(default_factory=dict)
    culprits: dict[Symptom, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Blame:
    """`harm_ns` by cause adds up to `excess_ns`, which is the sum of `stages_ns`: requests' time
    beyond `baseline_ns`. `facts` are the measurements behind it, times in ms. `tenant` made the
    growth in demand, if one did. `through` is how much of a cause's harm came by way of an effect:
    of slow steps by way of the queue, say. `load_ns` of the excess is what load alone explains: a
    fuller batch, and time in the queue that has no other cause. `preempted_ns` is the time of
    requests that lost their blocks after their first token, beyond the baseline: it is measured,
    not what is left of a stage."""

    seconds: float
    excess_ns: float
    baseline_ns: dict[Stage, float]
    harm_ns: Charges
    stages_ns: dict[Stage, float]
    engine: EngineTime | None
    facts: Facts = field(default_factory=Facts)
    tenant: str | None = None
    through: Through = field(default_factory=dict)
    load_ns: float = 0.0
    preempted_ns: float = 0.0


def charge_rows(found: EngineTime, symptom: Symptom, steps: Steps, spent: np.ndarray) -> None:
    """Charge (steps,) ns to the engine and to every row of each step; negative where a step was
    faster. A sum below zero charges nothing."""
    for charges, weight in (
        (found.taken_ns, 1.0),
        (found.decoding_ns, steps.decode_rows),
        (found.prompting_ns, steps.prompt_rows),
    ):
        charges[symptom] += max(0.0, float((spent * weight).sum()))


def charge_in_proportion(charges: Charges, parts: Mapping[Symptom, float], spent_ns: float) -> None:
    """`spent_ns` in proportion to `parts`."""
    for symptom, share in shares_of(parts).items():
        charges[symptom] += max(0.0, spent_ns) * share
