"""From faults to a twin: a server that can suffer from them is made, struck, and lived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from lab.twins.fault import Fault
from lab.twins.gateway import name_of
from lab.twins.life import START_NS, WHOLE, Life, Span, fault_span
from lab.twins.physics import SECOND
from lab.twins.traffic import Setting
from lab.twins.world import live
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import Fact, RequestEnded

# lives that differ in nothing but their configuration need no time before and after
_SHORT = Span(START_NS, START_NS + 34 * SECOND)
_STAGGER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A life of a server, and what was wrong with it.

    `facts` are in the order of time, and so are those of `before`: a life of the same kind under
    a good configuration, where a fault is one of configuration. The fault was there in
    [onset, end), None without one, or to the last. `victims` and `culprits` are ids of requests,
    or tenants, as far as the class has them. With two faults `together_ns` is the time in which
    both were there.
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


def lived(name: str, mechanism: str, seed: int, faults: Sequence[Fault]) -> Twin:
    """A life with all of these faults, the second up to five seconds after the first; healthy if
    none strikes and none makes the configuration worse."""
    key = f"{name}/{mechanism}/{seed}"
    setting, draw = _prepared(key, faults)
    striking = [fault for fault in faults if fault.strike is not None]
    before: list[Fact] | None = None
    for fault in faults:
        if fault.worsen is not None:
            before = before or live(Life.usual(setting, f"{key}/before", _SHORT))
            fault.worsen(setting, before, draw)
    life = Life.usual(setting, key, WHOLE if striking or before is None else _SHORT)
    spans = _strike(life, striking, draw)
    onsets = [] if before is None else [START_NS]
    onsets += [span.begin_ns for span in spans]
    life.settle()
    facts = live(life)
    culprits = _names(life.culprits)
    victims = _names(life.victims) | _failed(facts)
    for fault in faults:
        if fault.victims is not None:
            victims |= fault.victims(facts, culprits)
    lasts = before is not None or (life.outage is not None and life.outage.end_ns is None)
    return Twin(
        name=name,
        mechanism=mechanism,
        seed=seed,
        facts=facts,
        before=before,
        onset_ns=min(onsets, default=None),
        end_ns=None if lasts else max((span.end_ns for span in spans), default=None),
        victims=victims,
        culprits=culprits,
        together_ns=_together(onsets, spans) if len(faults) > 1 else None,
    )


def lived_well(name: str, mechanism: str, seed: int, faults: Sequence[Fault]) -> list[Fact]:
    """The facts of the same server under the same traffic, had none of these faults happened."""
    key = f"{name}/{mechanism}/{seed}"
    setting, _ = _prepared(key, faults)
    worsened = any(fault.worsen is not None for fault in faults)
    struck = any(fault.strike is not None for fault in faults)
    life = Life.usual(setting, key, _SHORT if worsened and not struck else WHOLE)
    life.settle()
    return live(life)


def _prepared(key: str, faults: Iterable[Fault]) -> tuple[Setting, Random]:
    """A server that can suffer from all of them, healthy still."""
    draw = Random(key)
    setting = Setting.drawn(draw)
    for fault in faults:
        fault.prepare(setting, draw)
    return setting, draw


def _strike(life: Life, faults: Iterable[Fault], draw: Random) -> list[Span]:
    """Let each of them happen; returns when it did."""
    spans: list[Span] = []
    whole = fault_span(draw)
    for number, fault in enumerate(faults):
        assert fault.strike is not None
        late_ns = int(draw.uniform(0, _STAGGER_S) * SECOND) if number else 0
        span = Span(whole.begin_ns + late_ns, whole.end_ns)
        fault.strike(life, span, draw)
        spans.append(life.struck or span)
    return spans


def _together(onsets_ns: Sequence[int], spans: Sequence[Span]) -> tuple[int, int] | None:
    """From the last begin to the first end; a bad configuration does not end."""
    ends_ns = [span.end_ns for span in spans]
    return (max(onsets_ns), min(ends_ns)) if onsets_ns and ends_ns else None


def _names(found: set[int | str]) -> frozenset[str]:
    return frozenset(one if isinstance(one, str) else name_of(one) for one in found)


def _failed(facts: Sequence[Fact]) -> frozenset[str]:
    """Requests that the server could not do."""
    return frozenset(
        fact.request_id
        for fact in facts
        if isinstance(fact, RequestEnded)
        and (fact.reason.outcome is Outcome.FAILED or fact.reason is EndReason.NOT_READY)
    )
