"""From the logs of an episode to its label and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lab.drills.client import Sent
from lab.drills.mechanism import Mechanism
from lab.drills.outcome.conditions import LAG_LIMIT_MS, LONG_LAG_LIMIT_MS, Conditions
from lab.drills.outcome.labels import Label
from lab.drills.outcome.result import (
    ClientSummary,
    EpisodeResult,
    HarmThresholds,
    effect_reasons,
    first_harmed_ns,
    harmed_requests,
    reference_requests,
    summaries_by_phase,
    thresholds_of,
)
from lab.drills.outside import Nice
from lab.drills.pace import Beat, paces
from lab.drills.spec import Phase, Phases
from lab.drills.traffic import Scene
from lab.drills.watch import PollSample, Root, timeline

_MOST_LISTED = 100


@dataclass(slots=True)
class EpisodeRecord:
    """What an episode recorded. `logs` has, for each server, the start of its traffic and its
    requests. Where clients were later than `lag_limit_ms` it does not count, and where there are
    `failures` of what was to cause the fault."""

    logs: list[tuple[int, list[Sent]]] = field(default_factory=list)
    samples: list[PollSample] = field(default_factory=list)
    conditions: dict[str, Conditions] = field(default_factory=dict)
    on_ns: int | None = None
    off_ns: int | None = None
    beats: list[Beat] = field(default_factory=list)
    root: Root | None = None
    exit_code: int | None = None
    exit_line: str | None = None
    has_baseline: bool = False
    lag_limit_ms: float = LAG_LIMIT_MS
    failures: list[str] = field(default_factory=list)
    nices: list[Nice] = field(default_factory=list)

    @property
    def all_sent(self) -> Iterator[Sent]:
        for _, log in self.logs:
            yield from log


def label_of(record: EpisodeRecord, scene: Scene, mechanism: Mechanism) -> Label:
    """The label: culprits are known from the traffic, victims from the clients' latencies."""
    on_ns, off_ns = (record.on_ns, record.off_ns) if mechanism.is_fault else (None, None)
    victims, culprits = list[str](), list[str]()
    if mechanism.culprit_tenant is not None:
        culprits = [mechanism.culprit_tenant]
        tenants = dict.fromkeys(one.tenant for one in record.all_sent)
        victims = [tenant for tenant in tenants if tenant not in culprits]
    elif on_ns is not None and record.logs:
        culprits = [one.request_id for one in record.all_sent if one.is_culprit]
        victims = _victims(record, scene, mechanism, on_ns, off_ns or on_ns)
    return Label(
        symptom=mechanism.symptom,
        mechanism=mechanism.name,
        intensity=scene.intensity,
        unit=mechanism.unit,
        seed=scene.seed,
        on_ns=on_ns,
        off_ns=off_ns,
        victims=tuple(victims[:_MOST_LISTED]),
        culprits=tuple(culprits[:_MOST_LISTED]),
    )


def result_of(
    record: EpisodeRecord,
    scene: Scene,
    mechanism: Mechanism,
    label: Label,
    label_sha256: str,
    name: str,
    flags: tuple[str, ...],
) -> EpisodeResult:
    begin_ns = record.logs[-1][0] if record.logs else record.on_ns or 0
    everyone = _summaries(record, scene.phases, with_culprits=True)
    others = _summaries(record, scene.phases, with_culprits=False)
    discarded = discard_reasons(record.conditions, mechanism.is_fault, record.lag_limit_ms)
    discarded += record.failures
    if mechanism.is_fault and not mechanism.never_better:  # that has nothing to rise from
        discarded += effect_reasons(mechanism.harms, (everyone, others))

    def at_s(at_ns: int | None) -> float | None:
        return None if at_ns is None else round((at_ns - begin_ns) / 1e9, 3)

    return EpisodeResult(
        name=name,
        symptom=mechanism.symptom,
        mechanism=mechanism.name,
        intensity=scene.intensity,
        seed=scene.seed,
        phases=scene.phases,
        flags=flags,
        capacity=scene.capacity if record.logs else None,
        load=scene.load,
        begin_ns=begin_ns,
        usual_begin_ns=record.logs[0][0] if len(record.logs) > 1 else None,
        on_s=at_s(label.on_ns),
        off_s=at_s(label.off_ns),
        first_harmed_s=at_s(_first_harmed_ns(record, scene, mechanism, label)),
        clients=everyone,
        others=others,
        harms=mechanism.harms,
        verdicts=timeline(record.samples, begin_ns),
        conditions=record.conditions,
        paces=paces(
            record.beats,
            begin_ns,
            (scene.phases.reference_at_s, scene.phases.fault_at_s),
            scene.phases.end_s,
        ),
        discarded=discarded,
        label=label,
        label_sha256=label_sha256,
        root=record.root,
        exit_code=record.exit_code,
        exit_line=record.exit_line,
        has_baseline=record.has_baseline,
        nices=tuple(record.nices),
    )


def discard_reasons(
    conditions: Mapping[str, Conditions], is_fault: bool, lag_limit_ms: float = LAG_LIMIT_MS
) -> list[str]:
    """Why an episode does not count. Clients may be late by `lag_limit_ms` in all phases before a
    fault, and from it on by `LONG_LAG_LIMIT_MS` if that is more. No other process may load the
    machine before a fault, since from then on the fault itself may do so; without a fault in no
    phase, and neither where there is no reference to show that the machine was quiet."""
    before = {Phase.WARM_UP, Phase.REFERENCE} if is_fault else set(Phase)
    quiet = before if Phase.REFERENCE in conditions else set(Phase)
    found: list[str] = []
    for name, one in conditions.items():
        reasons: list[str] = []
        if one.lag_p99_ms is None and name in (Phase.REFERENCE, Phase.FAULT):
            reasons.append("no request was due")
        limit_ms = lag_limit_ms if name in before else max(lag_limit_ms, LONG_LAG_LIMIT_MS)
        if name in quiet:
            reasons += one.discard_reasons(limit_ms)
        else:
            steal = one.steal_reasons() if name == Phase.FAULT else []
            reasons += [*one.lag_reasons(limit_ms), *steal]
        found += [f"{name}: {reason}" for reason in reasons]
    return found


def _limits(record: EpisodeRecord, phases: Phases, on_ns: int) -> HarmThresholds | None:
    """HarmThresholds from the first server, which served the reference."""
    if not record.logs:
        return None
    return thresholds_of(reference_requests(record.logs[0][1], on_ns, phases.reference_s))


def _first_harmed_ns(
    record: EpisodeRecord, scene: Scene, mechanism: Mechanism, label: Label
) -> int | None:
    if label.on_ns is None:
        return None
    limits = _limits(record, scene.phases, label.on_ns)
    if limits is None:
        return None
    span_ns = label.on_ns, label.off_ns or label.on_ns
    return first_harmed_ns(record.logs[-1][1], limits, span_ns, adds=mechanism.adds(scene))


def _victims(
    record: EpisodeRecord, scene: Scene, mechanism: Mechanism, on_ns: int, off_ns: int
) -> list[str]:
    """Harmed requests that were due before the fault's end and that the fault did not add."""
    limits = _limits(record, scene.phases, on_ns)
    if limits is None:
        return []
    harmed, adds = harmed_requests(record.logs[-1][1], limits, on_ns, off_ns), mechanism.adds(scene)
    return [one.request_id for one in harmed if not (adds and one.is_culprit)]


def _summaries(
    record: EpisodeRecord, phases: Phases, *, with_culprits: bool
) -> dict[str, ClientSummary]:
    found: dict[str, ClientSummary] = {}
    for begin_ns, log in record.logs:
        chosen = [one for one in log if with_culprits or not one.is_culprit]
        found |= summaries_by_phase(chosen, phases, begin_ns)
    return found
