"""Many diagnosers over one record, each with another number changed.

Most of a diagnosis is summing facts, which is the same for all whose numbers are of attribution or
of verdicts. So for them facts are folded once, sums of the same stretch are made once, and so are
fits to the same steps; each diagnoser only judges. A number of detection decides what is folded, so
its diagnoser has a fold of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from benchmarks.diagnosis.sensitivity.changes import FACTORS, Changes
from diagnosis.attribution.blame import blame
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts
from diagnosis.detection.excess import prompt_excess, slow_step_excess
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import Reference, fit_baseline
from diagnosis.detection.request_state import AffectedRequest
from diagnosis.detection.requests import Requests
from diagnosis.detection.step_cost import fit_cost
from diagnosis.detection.steps import Steps
from diagnosis.detection.window import Window
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from telemetry.facts.records import Fact, fact_ns
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

Verdicts = list[tuple[int, Diagnosis]]
Answer = TypeVar("Answer")
GROUP = 8
_FOLD = "diagnosis.detection."
_TICKS = "LATE_FACTS_NS"  # moves the moments at which a diagnoser looks at the fold
_FITTED = ("diagnosis.detection.reference", "telemetry.costs.cost_model")
# what is remembered, and the modules of which a changed number may change it
_REMEMBERED: dict[Callable[..., Any], tuple[str, ...]] = {
    fit_baseline: _FITTED,
    fit_cost: _FITTED,
    slow_step_excess: _FITTED,
    prompt_excess: _FITTED,
    blame: ("diagnosis.attribution.", "diagnosis.detection.excess", *_FITTED),
}
_LEARNT = ("diagnosis.detection.learning", "diagnosis.detection.excess", *_FITTED)


class Record(NamedTuple):
    """Facts that are judged by a policy, if there is one; `before` is a record of a server that was
    well."""

    facts: Sequence[Fact]
    before: Sequence[Fact] | None = None
    policy: SloPolicy | None = None


class SharedFold:
    """What one diagnoser has folded, for others to read at the same moment."""

    def __init__(self, folded: Aggregator) -> None:
        self._folded = folded
        self.memo: dict[tuple[Any, ...], Any] = {}
        self.requests = _Active(folded.requests, self.memo)

    def on_fact(self, fact: Fact) -> None:
        """It is folded already."""

    def forget(self, before_ns: int) -> None:
        """The first one does."""

    def counts(self, begin_ns: int, end_ns: int) -> Counts:
        key = "counts", begin_ns, end_ns
        if key not in self.memo:
            self.memo[key] = self._folded.counts(begin_ns, end_ns)
        found: Counts = self.memo[key]
        return found

    def steps(self, begin_ns: int, end_ns: int) -> Steps:
        key = "steps", begin_ns, end_ns
        if key not in self.memo:
            self.memo[key] = self._folded.steps(begin_ns, end_ns)
        found: Steps = self.memo[key]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folded, name)


class _Active:
    """Requests of the fold, those of the same stretch listed once."""

    def __init__(self, requests: Requests, memo: dict[tuple[Any, ...], Any]) -> None:
        self._requests, self._memo = requests, memo

    def active(self, begin_ns: int, end_ns: int) -> list[AffectedRequest]:
        key = "active", begin_ns, end_ns
        if key not in self._memo:
            self._memo[key] = self._requests.active(begin_ns, end_ns)
        found: list[AffectedRequest] = self._memo[key]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requests, name)


class _Memory:
    """What functions found in the same sums, until the next facts come. `judge` is the one that is
    asked now; None remembers nothing."""

    def __init__(self) -> None:
        self.judge: _Judge | None = None

    def of(self, function: Callable[..., Any], modules: tuple[str, ...]) -> Callable[..., Any]:
        def remembered(*args: Any) -> Any:
            judge = self.judge
            if judge is None or judge.fold is None or judge.touches(modules):
                return function(*args)
            memo, key = judge.fold.memo, (function.__name__, *map(_key, args))
            if key not in memo:
                memo[key] = args, function(*args)  # the arguments, so that no other has their ids
            return memo[key][1]

        return remembered

    def learnt(self, fit: Callable[[Any, int], Reference | None]) -> Callable[..., Any]:
        """`BaselineLearner.fit`, which depends on when the last fault ended, too."""

        def remembered(learner: Any, end_ns: int) -> Reference | None:
            judge = self.judge
            if judge is None or judge.fold is None or judge.touches(_LEARNT):
                return fit(learner, end_ns)
            memo, key = judge.fold.memo, ("learnt", end_ns, vars(learner)["_normal_from_ns"])
            if key not in memo:
                memo[key] = fit(learner, end_ns)
            found: Reference | None = memo[key]
            return found

        return remembered


def _key(one: Any) -> Any:
    if isinstance(one, Window):
        return tuple(_key(getattr(one, part.name)) for part in fields(one))
    return one if isinstance(one, int | float) else id(one)


@contextmanager
def _replaced(old: Any, new: Any) -> Iterator[None]:
    """A class or function of the diagnosis, wherever a module has it under its name."""
    name = old.__name__
    modules = [module for key, module in sys.modules.items() if key.startswith("diagnosis.")]
    places = [vars(module) for module in modules if vars(module).get(name) is old]
    for namespace in places:
        namespace[name] = new
    try:
        yield
    finally:
        for namespace in places:
            namespace[name] = old


class _Judge:
    """A diagnoser with one number changed (None: with none), and what it said. Without a `fold` of
    others it has its own."""

    def __init__(
        self,
        change: Changes | None,
        baseline: Reference | None,
        policy: SloPolicy | None,
        fold: SharedFold | None,
    ) -> None:
        self.fold, self.found = fold, Verdicts()
        self._modules = frozenset[str]() if change is None else change.modules
        self._touches: dict[tuple[str, ...], bool] = {}
        self._applied = nullcontext if change is None else change.applied
        shared = nullcontext() if fold is None else _replaced(Aggregator, lambda *_: fold)
        with self._applied(), shared:
            self.diagnoser = Diagnoser(baseline, policy)

    def touches(self, modules: tuple[str, ...]) -> bool:
        """Whether its change is one of a number in these modules."""
        if modules not in self._touches:
            self._touches[modules] = any(name.startswith(modules) for name in self._modules)
        return self._touches[modules]

    def take(self, facts: Sequence[Fact], memory: _Memory) -> None:
        """Facts of which only the last makes the diagnoser judge."""
        memory.judge = self
        with self._applied():
            self.diagnoser.on_facts(facts)
            said = self.diagnoser.diagnosis()
        if not self.found or said is not self.found[-1][1]:
            self.found.append((fact_ns(facts[-1]), said))

    def baseline(self, memory: _Memory) -> Reference | None:
        memory.judge = None
        with self._applied():
            return self.diagnoser.baseline()


def judge_each(
    record: Record, changes: Sequence[Changes], answer: Callable[[Verdicts], Answer]
) -> list[Answer]:
    """The answer on a record: without a change, then with each of `changes`.

    Those that may share a fold are judged each by itself. The others are judged GROUP at a time,
    and each by itself only where the group's answer is another one: most change nothing.
    """
    shared = [change for change in changes if _may_share(change)]
    plain, *found = judge_all(record, shared)
    found_of = {change.variants: answer(one) for change, one in zip(shared, found, strict=True)}
    usual, looked = answer(plain), _names_of(plain)
    for group in _groups([change for change in changes if not _may_share(change)]):
        (_, together) = judge_all(record, [Changes(*(one.variants[0] for one in group))])
        if answer(together) == usual and _names_of(together) == looked:
            found_of |= {change.variants: usual for change in group}
            continue
        for change in group:
            (_, alone) = judge_all(record, [change])
            found_of[change.variants] = answer(alone)
    return [usual, *(found_of[change.variants] for change in changes)]


def _may_share(change: Changes) -> bool:
    """Numbers of detection decide what is folded, and when facts are looked at."""
    names = {variant.row.name for variant in change.variants}
    return _TICKS not in names and not any(one.startswith(_FOLD) for one in change.modules)


def _groups(changes: Sequence[Changes]) -> list[list[Changes]]:
    """Groups of changes of one direction each, so that effects add up and hardly cancel."""
    found: list[list[Changes]] = []
    for factor in FACTORS:
        mine = [change for change in changes if change.variants[0].factor == factor]
        found += [mine[at : at + GROUP] for at in range(0, len(mine), GROUP)]
    return found


def _names_of(verdicts: Verdicts) -> list[str]:
    """What stood first, one after the other."""
    tops = [said.findings[0].symptom.value if said.findings else "" for _, said in verdicts]
    return [top for top, before in zip(tops, ["", *tops], strict=False) if top != before]


def judge_all(record: Record, changes: Sequence[Changes]) -> list[Verdicts]:
    """Every verdict on the record: without a change, then with each of `changes`."""
    baselines: list[Reference | None] = [None] * (1 + len(changes))
    memory = _Memory()
    with ExitStack() as stack:
        for function, modules in _REMEMBERED.items():
            stack.enter_context(_replaced(function, memory.of(function, modules)))
        fit = BaselineLearner.fit
        stack.callback(setattr, BaselineLearner, "fit", fit)
        BaselineLearner.fit = memory.learnt(fit)
        if record.before is not None:
            before = Record(record.before)
            baselines = [one.baseline(memory) for one in _run(before, baselines, changes, memory)]
        return [judge.found for judge in _run(record, baselines, changes, memory)]


def _run(
    record: Record,
    baselines: Sequence[Reference | None],
    changes: Sequence[Changes],
    memory: _Memory,
) -> list[_Judge]:
    folded = Aggregator(record.policy or DEFAULT_POLICY)
    fold = SharedFold(folded)
    with _replaced(Aggregator, lambda *_: folded):
        first = _Judge(None, baselines[0], record.policy, None)
    judges = [first]
    for change, baseline in zip(changes, baselines[1:], strict=True):
        judges.append(_Judge(change, baseline, record.policy, fold if _may_share(change) else None))
    shared = [judge for judge in judges[1:] if judge.fold is not None]
    batch: list[Fact] = []
    for fact in record.facts:
        batch.append(fact)
        count = len(first.found)
        first.take([fact], memory)
        if len(first.found) > count:
            for judge in shared:
                judge.take(batch, memory)
            batch = []
            fold.memo.clear()
    for judge in judges[1:]:
        if judge.fold is None:
            for fact in record.facts:
                judge.take([fact], memory)
    return judges
