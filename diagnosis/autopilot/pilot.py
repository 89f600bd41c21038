"""The states of the autopilot.

    watch -> wait for an answer -> propose -> applied and measured -> kept ---------+
      ^            |                  |                 |      +-----> rolled back -+
      |            +-> no gain        +-> (advise)      +-> void: asked again       |
      +-------------------------- cool-down <---------------------------------------+

A pure machine: `tick` gets the time and the verdict, `on_fact` and `on_timeline` what happened,
`on_answer` and `on_refused` what came of its wishes. One change at a time: a second is proposed
only after the first was kept or rolled back.
"""

from __future__ import annotations

from diagnosis.autopilot import words
from diagnosis.autopilot.attempt import Attempt
from diagnosis.autopilot.books import Books, Cause
from diagnosis.autopilot.bounds import Bounds
from diagnosis.autopilot.desk import Asked, Desk, Output, State
from diagnosis.autopilot.memory import Memory
from diagnosis.autopilot.proposal import Proposal, Refusal, Values, consider, way_back, whole
from diagnosis.autopilot.thresholds import (
    ANSWER_WITHIN_NS,
    ASK_AGAIN_MOST_NS,
    ASK_AGAIN_NS,
    BEFORE_WINDOW_NS,
    CPU_SAVED_NS,
    CPU_SHARE,
    LEAST_TROUBLE_NS,
    QUIET_NS,
)
from diagnosis.autopilot.trial import Running
from diagnosis.settings_search.answer import SettingsAnswer
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason
from telemetry.facts.records import Fact
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloPolicy

_MOST_DOUBLINGS = 20  # the longest time is reached long before


class Pilot:
    """`acts`: applies what it proposes. Everything is called on one thread at a time."""

    def __init__(self, policy: SloPolicy, bounds: Bounds, *, acts: bool) -> None:
        self.books = Books(policy)
        self.memory = Memory()
        self.attempt: Attempt | None = None
        self.standing: tuple[int, Proposal] | None = None
        self._state, self._since_ns = State.WATCH, 0
        self._bounds, self._acts = bounds, acts
        self._desk = Desk()
        self._asked: Asked | None = None
        self._number = self._fruitless = 0
        self._not_before_ns = 0
        self._paid_ns = -CPU_SAVED_NS  # until then searches have used their share of the CPU
        self._trouble_ns: int | None = None
        self._quiet_since_ns: int | None = None
        self._said: tuple[Reason, Values] | None = None

    @property
    def state(self) -> State:
        return self._state if self.attempt is None else self.attempt.state

    @property
    def since_ns(self) -> int:
        """Since when it is in this state."""
        return self._since_ns if self.attempt is None else self.attempt.since_ns

    # What comes in

    def on_fact(self, fact: Fact) -> None:
        self.books.on_fact(fact)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        self.books.on_timeline(timeline)

    def on_answer(
        self, number: int, answer: SettingsAnswer | None, cpu_s: float, now_ns: int
    ) -> None:
        """The answer to the `Ask` of that number; None: the search failed. `cpu_s` is what it cost,
        whether or not anybody still waits for it."""
        self._paid_ns = max(self._paid_ns, now_ns - CPU_SAVED_NS) + int(cpu_s / CPU_SHARE * 1e9)
        self._not_before_ns = max(self._not_before_ns, now_ns + ASK_AGAIN_NS, self._paid_ns)
        self._desk.answered(number, answer)

    def on_refused(self) -> None:
        """The engine refuses what `Put` asked for."""
        if self.attempt is not None:
            self.attempt.is_refused = True

    def tick(self, now_ns: int, verdict: str) -> list[Output]:
        """`verdict` is that of the diagnosis: healthy, fault or indeterminate."""
        self.books.tick(now_ns)
        self._watch_trouble(now_ns, verdict)
        self._take_changes(now_ns)
        if self.attempt is not None:
            self.attempt.tick(now_ns)
            self._end_attempt(now_ns)
        elif self._state is State.WAIT:
            self._wait(now_ns)
        elif self._state is State.COOL_DOWN:
            if now_ns >= self.memory.cool_until_ns:
                self._go(State.WATCH, now_ns)
        else:
            self._look(now_ns)
        return self._desk.take()

    # Watching and asking

    def _watch_trouble(self, now_ns: int, verdict: str) -> None:
        """What is not known is no trouble that a limit could end, and is no quiet either."""
        if verdict == "indeterminate":
            self._trouble_ns = self._quiet_since_ns = None
        elif verdict == "fault" or self.books.missed_classes(now_ns):
            self._trouble_ns = now_ns if self._trouble_ns is None else self._trouble_ns
            self._quiet_since_ns = None
        else:
            self._trouble_ns = None
            self._quiet_since_ns = now_ns if self._quiet_since_ns is None else self._quiet_since_ns
            if self._is_quiet(now_ns):
                self._fruitless = 0

    def _is_quiet(self, now_ns: int) -> bool:
        return self._quiet_since_ns is not None and now_ns - self._quiet_since_ns >= QUIET_NS

    def _look(self, now_ns: int) -> None:
        if self.standing is not None and self._is_quiet(now_ns):
            self._withdraw(now_ns, Reason.HEALTHY)
        if self._trouble_ns is None or now_ns - self._trouble_ns < LEAST_TROUBLE_NS:
            return
        if now_ns < self._not_before_ns or self._desk.is_searching(now_ns):
            return
        if self.books.in_force and self.books.is_known(now_ns):
            self._asked = self._desk.ask(now_ns)
            self._go(State.WAIT, now_ns)

    def _wait(self, now_ns: int) -> None:
        asked = self._asked
        assert asked is not None
        if asked.answer is not None:
            self._consider(asked.answer, now_ns)
        elif asked.has_failed or now_ns - asked.at_ns > ANSWER_WITHIN_NS:
            self._rest(now_ns)

    def _rest(self, now_ns: int) -> None:
        """Nothing came of a search: the next one is later each time."""
        rest_ns = min(ASK_AGAIN_MOST_NS, ASK_AGAIN_NS << min(_MOST_DOUBLINGS, self._fruitless))
        self._fruitless += 1
        self._not_before_ns = max(self._not_before_ns, now_ns + rest_ns)
        self._watch(now_ns)

    def _watch(self, now_ns: int) -> None:
        self._asked = None
        self._go(State.WATCH if self.standing is None else State.ADVISE, now_ns)

    # Proposing

    def _consider(self, answer: SettingsAnswer, now_ns: int) -> None:
        if self._trouble_ns is None:  # it is over, or nothing is known any more
            self._watch(now_ns)
            return
        before = self.books.known(now_ns - BEFORE_WINDOW_NS, now_ns)
        found = consider(answer, self._bounds, self.books.in_force, before)
        if isinstance(found, Proposal):
            found = self._allowed(found, now_ns)
        match found:
            case Proposal():
                self._propose(found, now_ns)
            case Refusal():
                self._refuse(found, now_ns)
            case None:
                if self.standing is not None:
                    self._withdraw(now_ns, Reason.NO_GAIN)
                self._rest(now_ns)

    def _allowed(self, found: Proposal, now_ns: int) -> Proposal | Refusal:
        """The proposal if what was before allows it, else why not."""
        memory, load = self.memory, self.books.load(now_ns - BEFORE_WINDOW_NS, now_ns)
        if memory.stopped & found.values.keys():
            reason = Reason.OPERATOR
        elif memory.was_tried(found.values, load):
            reason = Reason.TRIED_BEFORE
        elif not memory.is_cool(found.values, now_ns):
            reason = Reason.COOLING
        else:
            return found
        return Refusal(reason, words.said(reason), found.values, found.was)

    def _refuse(self, found: Refusal, now_ns: int) -> None:
        """Said once, until something else is said."""
        if self.standing is not None:
            self._withdraw(now_ns, found.reason)
        if self._said != (found.reason, found.values):
            self._said = (found.reason, found.values)
            self._desk.decide(
                now_ns, 0, Decision.REFUSED, found.reason, found.values, found.was, why=found.why
            )
        self._rest(now_ns)

    def _propose(self, proposal: Proposal, now_ns: int) -> None:
        if self.standing is not None and self.standing[1].values == proposal.values:
            self.standing = (self.standing[0], proposal)
            self._desk.say(now_ns, self.standing[0], proposal, Decision.UPHELD)
            self._watch(now_ns)
            return
        if self.standing is not None:
            self._withdraw(now_ns, Reason.NO_GAIN)
        self._number += 1
        self._fruitless, self._said = 0, None
        self._desk.say(now_ns, self._number, proposal, Decision.PROPOSED)
        if self._acts:
            back = way_back(proposal.values, self.books.in_force)
            load = self.books.load(now_ns - BEFORE_WINDOW_NS, now_ns)
            running = Running(self._number, proposal, back, load)
            self.attempt = Attempt(running, self.books, self.memory, self._desk, now_ns)
        else:
            self.standing = (self._number, proposal)
        self._watch(now_ns)

    def _withdraw(self, now_ns: int, reason: Reason) -> None:
        assert self.standing is not None
        number, proposal = self.standing
        self.standing = None
        self._desk.decide(
            now_ns, number, Decision.WITHDRAWN, reason, proposal.values, proposal.was,
            promised=proposal.promised, why=words.said(reason),
        )  # fmt: skip
        if self._state is State.ADVISE:
            self._go(State.WATCH, now_ns)

    def _end_attempt(self, now_ns: int) -> None:
        if self.attempt is not None and self.attempt.is_over:
            self.attempt = None
            self._not_before_ns = max(self._not_before_ns, self.memory.cool_until_ns)
            self._go(State.COOL_DOWN, now_ns)

    # What others change

    def _take_changes(self, now_ns: int) -> None:
        """What was kept stays in a new engine: the owner of the limits sees to it."""
        for change in self.books.take_changes():
            match change.cause:
                case Cause.OPERATOR:
                    self._operated(now_ns, change.names)
                case Cause.CONFIG:
                    if self.attempt is not None:
                        self.attempt.operated(now_ns, change.names)
                case Cause.RESTART:
                    if self.attempt is not None:
                        self.attempt.restarted(now_ns)
            self._end_attempt(now_ns)

    def _operated(self, now_ns: int, names: tuple[str, ...]) -> None:
        """An operator's limits are left alone from now on."""
        fresh = self.memory.stop(names)
        if self.standing is not None and self.standing[1].values.keys() & set(whole(names)):
            self._withdraw(now_ns, Reason.OPERATOR)
        if self.attempt is not None:
            self.attempt.operated(now_ns, names)
        if fresh:
            self._desk.stop(now_ns, {name: self.books.in_force.get(name) for name in fresh})

    def _go(self, state: State, now_ns: int) -> None:
        self._state, self._since_ns = state, now_ns
