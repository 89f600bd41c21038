"""Root causes of one twin, each with another number changed.

A replay takes longer than all that is made of it, and most numbers only decide which replays are
run and what is made of them. So a replay with the same change of the same run is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.diagnosis.sensitivity.changes import Changes
from benchmarks.diagnosis.virtual.twin_attribution import question_of
from diagnosis.root_cause import counterfactual
from diagnosis.root_cause.counterfactual import explain
from diagnosis.root_cause.interventions import Cause
from diagnosis.root_cause.question import Question
from lab.replay.iteration_cost import IterationCost
from lab.replay.noise import RecordedNoise
from lab.replay.recorded import NotReplayable, RecordedRun
from lab.replay.replay_modelled import Change
from lab.twins.twin import Twin
from telemetry.facts.records import Fact
from telemetry.requests.phases import RequestTimeline

_FITTED = ("lab.replay.", "telemetry.costs.")  # what replays are made of
_REPLAYED = ("STALL",)  # is in use while a replay runs, not only when its cost is fitted


class _Replays:
    """Facts of replays, and the timelines of these facts, by the change."""

    def __init__(self) -> None:
        self._facts: dict[Any, list[Fact]] = {}
        self._timelines: dict[int, list[RequestTimeline]] = {}
        self._replay: Callable[..., list[Fact]] = vars(counterfactual)["replay_modelled"]
        self._fold: Callable[..., list[RequestTimeline]] = vars(counterfactual)["timelines_of"]

    def facts(self, run: RecordedRun, cost: Any, change: Change) -> list[Fact]:
        key = _key(change)
        if key not in self._facts:
            self._facts[key] = self._replay(run, cost, change)
        return self._facts[key]

    def timelines(self, facts: list[Fact]) -> list[RequestTimeline]:
        if id(facts) not in self._timelines:
            self._timelines[id(facts)] = self._fold(facts)
        return self._timelines[id(facts)]


def _key(change: Change) -> Any:
    """Equal for equal changes."""
    assert isinstance(change.noise, RecordedNoise)
    noise = hash(tuple(vars(change.noise)["_disturbances"]))
    rest = (repr(getattr(change, one.name)) for one in fields(change) if one.name != "noise")
    return noise, *rest


def causes_of(twin: Twin, changes: Sequence[Changes]) -> list[Cause | None]:
    """The cause that explains most: without a change, then with each of `changes`."""
    replays, question = _Replays(), _question(twin)
    found = [_top(question, replays)]
    for change in changes:
        with change.applied():
            if not any(name.startswith(_FITTED) for name in change.modules):
                found.append(_top(question, replays))
                continue
            other = _question(twin)
            same = change.variants[0].row.name not in _REPLAYED and _cost(other) == _cost(question)
            found.append(_top(other, replays if same else _Replays()))
    return found


def _cost(question: Question | None) -> IterationCost | None:
    return None if question is None else question.cost


def _question(twin: Twin) -> Question | None:
    try:
        return question_of(twin)
    except NotReplayable:
        return None


def _top(question: Question | None, replays: _Replays) -> Cause | None:
    if question is None:
        return None
    namespace = vars(counterfactual)
    before = {name: namespace[name] for name in ("replay_modelled", "timelines_of")}
    namespace |= {"replay_modelled": replays.facts, "timelines_of": replays.timelines}
    try:
        return explain(question).top
    except NotReplayable:
        return None
    finally:
        namespace |= before
