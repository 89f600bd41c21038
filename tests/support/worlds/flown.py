"""A simulated engine with the autopilot in the loop: the production scheduler in virtual time, the
real search of its own record, and limits that are set through the inbox.

What each request got is judged from the facts by the same folds as on a server.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from diagnosis.autopilot.books import BY, CONFIG
from diagnosis.autopilot.bounds import DEFAULT_BOUNDS, KNOWN
from diagnosis.autopilot.desk import Ask, Put
from diagnosis.autopilot.pilot import Pilot
from diagnosis.settings_search.offline import last_window, search_run
from lab.replay.recorded import read_runs
from lab.simulation.scenarios import Scenario
from lab.simulation.workload import Arrival
from lab.simulation.world import World
from service.engine.inbox import SetLimits
from service.engine.limits_record import runtime_of
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.engine_records import EngineStarted, LimitsSet, SequenceEnded
from telemetry.facts.engine_start import RuntimeLimits
from telemetry.facts.limits import LimitValue, limits_at_start, named
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.requests.phase_fold import PhaseFold
from tests.support.worlds.facts import TRACE
from tests.support.worlds.promised import POLICY, SECOND, Promised

_UNTOUCHED = set(KNOWN) - set(DEFAULT_BOUNDS)
_TICK_NS = SECOND // 2
_SEARCH_NS = 6 * SECOND
_FIELDS = {
    "max_num_seqs": "max_seqs",
    "speculative_tokens": "draft_tokens",
}


class Flown(World):
    """`promised` is the server and its traffic; `wrong` is set by a tool at once, since a running
    engine cannot be given more than it started with."""

    def __init__(
        self,
        promised: Promised,
        seed: int,
        *,
        wrong: dict[str, LimitValue] | None = None,
        acts: bool = True,
    ) -> None:
        draw = Random(seed)
        came = [one for kind in promised.kinds for one in kind.arrivals(draw, promised.seconds)]
        came.sort(key=lambda one: one[1].at_ns)
        self._classes = {id(arrival): name for name, arrival in came}
        self.pilot = Pilot(POLICY, DEFAULT_BOUNDS, acts=acts)
        self.decisions: list[AutopilotDecided] = []
        self.in_force: RuntimeLimits | None = None
        self._phases = PhaseFold([self.pilot.on_timeline])
        self._record: list[Fact] = []
        self._fed = 0
        self._ticked_ns = 0
        self._asked: tuple[int, int] | None = None
        self.end_ns = int(promised.seconds * SECOND)
        super().__init__(
            Scenario(
                name="flown",
                seed=seed,
                limits=promised.limits,
                arrivals=tuple(arrival for _, arrival in came),
                cost=promised.cost,
                faults=promised.faults,
                knows_cost=True,
            )
        )
        if wrong:
            limits = runtime_of(promised.limits)
            for name, value in wrong.items():
                limits = _with(limits, name, value)
            changed = tuple(sorted(wrong))
            self.inbox.put(SetLimits(limits=limits, changed=changed, by=CONFIG, why="rolled out"))

    def told(self, *decisions: Decision) -> list[AutopilotDecided]:
        return [one for one in self.decisions if one.decision in decisions]

    def good_share(self, slo_class: str, from_s: float, until_s: float) -> float:
        """Of the requests that were accepted in these seconds."""
        found = self.pilot.books.tallies(int(from_s * SECOND), int(until_s * SECOND))
        return found[slo_class].share

    def limit(self, name: str) -> LimitValue:
        assert self.in_force is not None
        return named(self.in_force)[name]

    def _arrive(self, arrival: Arrival) -> None:
        seq_id, now_ns = self._next_seq_id, self.clock.now_ns()
        name, slo_class = f"r{seq_id}", self._classes[id(arrival)]
        self._feed(
            [
                RequestAccepted(
                    name, now_ns, TRACE, None, None, None, "/v1/completions",
                    "text_completion", arrival.tenant, slo_class,
                ),
                RequestParsed(
                    name, now_ns, "model", True, 1, arrival.max_tokens, 1.0, 1.0, 0, None
                ),
                RequestTokenized(name, now_ns, len(arrival.prompt)),
                SequenceSubmitted(name, now_ns, seq_id, 0),
            ]
        )  # fmt: skip
        super()._arrive(arrival)

    def _iterate(self) -> None:
        super()._iterate()
        facts, self._fed = self._facts[self._fed :], len(self._facts)
        self._feed(facts)
        for fact in facts:
            if isinstance(fact, SequenceEnded):
                self._feed([_end(fact)])
            elif isinstance(fact, EngineStarted):
                self.in_force = limits_at_start(fact)
            elif isinstance(fact, LimitsSet):
                self.in_force = fact.limits
        now_ns = self.clock.now_ns()
        if now_ns - self._ticked_ns >= _TICK_NS and now_ns < self.end_ns:
            self._ticked_ns = now_ns
            self._tick(now_ns)

    def _tick(self, now_ns: int) -> None:
        if self._asked is not None and now_ns - self._asked[1] >= _SEARCH_NS:
            self._answer(now_ns)
        for one in self.pilot.tick(now_ns, "healthy"):  # missed objectives are enough
            match one:
                case AutopilotDecided():
                    self.decisions.append(one)
                case Ask():
                    self._asked = (one.number, now_ns)
                case Put():
                    self._set(one)

    def _answer(self, now_ns: int) -> None:
        assert self._asked is not None
        (number, asked_ns), self._asked = self._asked, None
        known = sorted((f for f in self._record if fact_ns(f) < asked_ns), key=fact_ns)
        run = read_runs(known)[-1]
        answer = search_run(run, last_window(run), POLICY, only_runtime=True, without=_UNTOUCHED)
        self.pilot.on_answer(number, answer, answer.cpu_s, now_ns)

    def _set(self, wish: Put) -> None:
        assert self.in_force is not None
        wanted = self.in_force
        for name in sorted(wish.values):
            wanted = _with(wanted, name, wish.values[name])
        changed = tuple(sorted(wish.values))
        self.inbox.put(SetLimits(limits=wanted, changed=changed, by=BY, why=wish.why))

    def _feed(self, facts: list[Fact]) -> None:
        self._record += facts
        for fact in facts:
            self.pilot.on_fact(fact)
        self._phases.on_facts(facts)


def _with(limits: RuntimeLimits, name: str, value: LimitValue) -> RuntimeLimits:
    match name:
        case "max_batched_tokens" if value == "auto":
            return replace(limits, auto_budget=True)
        case "max_batched_tokens":
            return replace(limits, auto_budget=False, budget_tokens=value)
        case "max_auto_tokens":
            return limits if value is None else replace(limits, budget_tokens=value)
        case "order":
            return replace(limits, slo_order=value == "slo")
        case _:
            return replace(limits, **{_FIELDS.get(name, name): value})


def _end(fact: SequenceEnded) -> RequestEnded:
    return RequestEnded(
        f"r{fact.seq_id}", fact.at_ns, fact.reason, 200, None, fact.output_tokens,
        None, fact.at_ns, 0, 0, None,
    )  # fmt: skip
