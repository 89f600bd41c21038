"""What a gateway says of one simulated fleet, moment by moment, and whether that is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from diagnosis.routed.diagnoser import RoutedDiagnoser
from diagnosis.routed.symptoms import PREFIX, RoutedVerdict
from lab.fleet.twins.kv_registry import HEALTHY as HEALTHY_KV
from lab.fleet.twins.kv_registry import KV_TWINS, build_kv_twin
from lab.fleet.twins.registry import FLEET_TWINS, HEALTHY, build_fleet_twin
from lab.fleet.twins.twin import SECOND, FleetTwin

HEALTHY_ONES = (HEALTHY, HEALTHY_KV)
MECHANISMS: dict[str, tuple[str, ...]] = {
    **{name: tuple(known) for name, known in FLEET_TWINS.items()},
    **{name: tuple(known) for name, known in KV_TWINS.items()},
}
"""The mechanisms of every twin, the first one for development."""
AFTER_NS = 2 * SECOND
"""What is said so soon after a fault is still about it: the window has it."""
FADES_NS = 14 * SECOND
"""What is said later than this after a fault is a false alarm."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One twin. `named` is the symptom that was said first for most of the time in which any was,
    while the fault lasted; empty: none. `alarms` are verdicts with a fault where there was none,
    and `alarmed` the symptoms that they named. `culprit_right` is None where no engine is at
    fault."""

    name: str
    mechanism: str
    seed: int
    named: str
    said: dict[str, int]
    detected_s: float | None
    culprit_right: bool | None
    alarms: int
    alarmed: dict[str, int]
    requests: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A verdict, at the end of a tick."""

    at_ns: int
    verdict: RoutedVerdict


def moments(twin: FleetTwin) -> list[Moment]:
    """Every verdict of a diagnoser that is fed the facts."""
    diagnoser, found = RoutedDiagnoser(), list[Moment]()
    for fact in twin.facts:
        diagnoser.on_fact(fact)
        verdict = diagnoser.verdict
        if verdict is not None and (not found or verdict is not found[-1].verdict):
            found.append(Moment(fact.at_ns, verdict))  # type: ignore[union-attr]
    return found


def build(name: str, seed: int, mechanism: str | None = None) -> FleetTwin:
    """A twin by its name. Raises KeyError."""
    if name in KV_TWINS:
        return build_kv_twin(name, seed, mechanism)
    return build_fleet_twin(name, seed, mechanism)


def row_of(name: str, mechanism: str, seed: int) -> Row:
    """Build a twin, feed it, and judge what was said."""
    twin = build(name, seed, mechanism)
    return judged(name, mechanism, twin, moments(twin))


def judged(name: str, mechanism: str, twin: FleetTwin, found: Sequence[Moment]) -> Row:
    """The row of one twin, judged by every verdict on it."""
    said: Counter[str] = Counter()
    alarmed: Counter[str] = Counter()
    culprits: Counter[bool] = Counter()
    detected_s: float | None = None
    for moment in found:
        faults = moment.verdict.faults
        if not faults:
            continue
        first = faults[0].symptom.value
        if _is_during(twin, moment.at_ns):
            said[first] += 1
            if first == name:
                assert twin.onset_ns is not None
                if detected_s is None:
                    detected_s = round((moment.at_ns - twin.onset_ns) / 1e9, 2)
                engines = [one for one in faults[0].culprits if not one.startswith(PREFIX)]
                culprits[bool(engines) and engines[0] in twin.culprits] += 1
        elif not _is_fading(twin, moment.at_ns):
            alarmed[first] += 1
    return Row(
        name=name,
        mechanism=mechanism,
        seed=twin.seed,
        named=said.most_common(1)[0][0] if said else "",
        said=dict(said),
        detected_s=detected_s,
        culprit_right=culprits[True] > culprits[False] if twin.culprits else None,
        alarms=alarmed.total(),
        alarmed=dict(alarmed),
        requests=twin.requests,
    )


def _is_during(twin: FleetTwin, at_ns: int) -> bool:
    if twin.onset_ns is None or twin.over_ns is None:
        return False
    return twin.onset_ns <= at_ns < twin.over_ns + AFTER_NS


def _is_fading(twin: FleetTwin, at_ns: int) -> bool:
    return twin.over_ns is not None and twin.over_ns <= at_ns < twin.over_ns + FADES_NS
