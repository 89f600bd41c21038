"""From faults to a twin: prepare a server, inject the faults, simulate the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from lab.twins.fault import Fault
from lab.twins.gateway import request_id_of
from lab.twins.physics import SECOND
from lab.twins.simulate import simulate
from lab.twins.simulated_run import START_NS, WHOLE_RUN, SimulatedRun, Span, fault_span
from lab.twins.traffic import WORLD_POLICY, Setting
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import Fact, RequestEnded
from telemetry.requests.slo_policy import SloPolicy

# runs that differ only in their configuration need no time before and after a fault
_SHORT = Span(START_NS, START_NS + 34 * SECOND)
_STAGGER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """Facts of a simulated run, and its true fault.

    `facts` and `before` are in the order of time; `before` is a run of the same kind with a good
    configuration, where the fault is one of configuration. The fault was there in
    [onset, end); onset None: no fault, end None: to the end. `victims` and `culprits` are ids
    of requests, or tenants, where the class has them. With two faults `together_ns` is the time
    in which both were there. `policy` is what the server promises.
    """

    name: str
    mechanism: str
    seed: int
    facts: list[Fact]
    before: list[Fact] | None
    onset_ns: int | None
    end_ns: int | None
    victims: frozenset[str]
    culprits: frozenset[str]
    together_ns: tuple[int, int] | None = None
    policy: SloPolicy = WORLD_POLICY


def simulate_twin(name: str, mechanism: str, seed: int, faults: Sequence[Fault]) -> Twin:
    """A run with all of these faults, the second up to five seconds after the first; healthy if
    none injects, none misconfigures and none was always there."""
    key = f"{name}/{mechanism}/{seed}"
    setting, draw = _prepared(key, faults)
    injecting = [fault for fault in faults if fault.inject is not None]
    before: list[Fact] | None = None
    for fault in faults:
        if fault.misconfigure is not None:
            before = before or simulate(SimulatedRun.baseline(setting, f"{key}/before", _SHORT))
            fault.misconfigure(setting, before, draw)
    always = [fault.always for fault in faults if fault.always is not None]
    for edit in always:
        edit(setting, draw)
    from_start = before is not None or bool(always)
    run = SimulatedRun.baseline(setting, key, _SHORT if from_start and not injecting else WHOLE_RUN)
    spans = _inject(run, injecting, draw)
    onsets = [START_NS] if from_start else []
    onsets += [span.begin_ns for span in spans]
    run.renumber()
    facts = simulate(run)
    culprits = _names(run.culprits)
    victims = _names(run.victims) | _failed(facts)
    for fault in faults:
        if fault.victims is not None:
            victims |= fault.victims(facts, culprits)
    lasts_to_end = from_start or (run.outage is not None and run.outage.end_ns is None)
    return Twin(
        name=name,
        mechanism=mechanism,
        seed=seed,
        facts=facts,
        before=before,
        onset_ns=min(onsets, default=None),
        end_ns=None if lasts_to_end else max((span.end_ns for span in spans), default=None),
        victims=victims,
        culprits=culprits,
        together_ns=_overlap(onsets, spans) if len(faults) > 1 else None,
        policy=setting.policy,
    )


def simulate_without_faults(
    name: str, mechanism: str, seed: int, faults: Sequence[Fault]
) -> list[Fact]:
    """Facts of the same server under the same traffic without these faults."""
    key = f"{name}/{mechanism}/{seed}"
    setting, _ = _prepared(key, faults)
    misconfigured = any(fault.misconfigure or fault.always for fault in faults)
    injected = any(fault.inject is not None for fault in faults)
    run = SimulatedRun.baseline(
        setting, key, _SHORT if misconfigured and not injected else WHOLE_RUN
    )
    run.renumber()
    return simulate(run)


def _prepared(key: str, faults: Iterable[Fault]) -> tuple[Setting, Random]:
    """A healthy server, prepared for all of these faults."""
    draw = Random(key)
    setting = Setting.drawn(draw)
    for fault in faults:
        fault.prepare(setting, draw)
    return setting, draw


def _inject(run: SimulatedRun, faults: Iterable[Fault], draw: Random) -> list[Span]:
    """Inject each fault; returns when each is there."""
    spans: list[Span] = []
    whole = fault_span(draw)
    for number, fault in enumerate(faults):
        assert fault.inject is not None
        late_ns = int(draw.uniform(0, _STAGGER_S) * SECOND) if number else 0
        span = Span(whole.begin_ns + late_ns, whole.end_ns)
        fault.inject(run, span, draw)
        spans.append(run.injected or span)
    return spans


def _overlap(onsets_ns: Sequence[int], spans: Sequence[Span]) -> tuple[int, int] | None:
    """From the last begin to the first end; a bad configuration does not end."""
    ends_ns = [span.end_ns for span in spans]
    return (max(onsets_ns), min(ends_ns)) if onsets_ns and ends_ns else None


def _names(found: set[int | str]) -> frozenset[str]:
    return frozenset(one if isinstance(one, str) else request_id_of(one) for one in found)


def _failed(facts: Sequence[Fact]) -> frozenset[str]:
    """Requests that failed, or found no engine ready."""
    return frozenset(
        fact.request_id
        for fact in facts
        if isinstance(fact, RequestEnded)
        and (fact.reason.outcome is Outcome.FAILED or fact.reason is EndReason.NOT_READY)
    )
