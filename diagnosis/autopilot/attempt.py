"""One change that is applied: sent, measured, and kept or rolled back.

applying -> measuring -> kept
              |   +----> rolling back
              +-> something else changed: void -> a search of what is now -> kept, or back
"""

from __future__ import annotations

from collections.abc import Collection

from diagnosis.autopilot import words
from diagnosis.autopilot.books import Books
from diagnosis.autopilot.desk import Asked, Desk, State
from diagnosis.autopilot.memory import Memory
from diagnosis.autopilot.proposal import Values, leads_back, values_of, whole
from diagnosis.autopilot.thresholds import ANSWER_WITHIN_NS, CONFIRM_WITHIN_NS, RECHECK_NS
from diagnosis.autopilot.trial import Running, is_other_load
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason

_PUT_TRIES = 5


class Attempt:
    """`is_over` once it is decided and, if it was not kept, undone."""

    def __init__(
        self, running: Running, books: Books, memory: Memory, desk: Desk, now_ns: int
    ) -> None:
        self.running = running
        self.state = State.APPLYING
        self.since_ns = now_ns
        self.is_over = self.is_refused = False
        self.asked: Asked | None = None
        self._books, self._memory, self._desk = books, memory, desk
        self._why = (Reason.WORSE, "")
        self._puts, self._put_ns = 0, now_ns
        books.set_by_us_ns = None
        desk.put(running.proposal.values, words.promise(running.proposal))

    def tick(self, now_ns: int) -> None:
        match self.state:
            case State.APPLYING:
                self._apply(now_ns)
            case State.MEASURING:
                self._measure(now_ns)
            case State.RECHECK:
                self._recheck(now_ns)
            case _:
                self._roll_back(now_ns)

    def restarted(self, now_ns: int) -> None:
        """The engine ended. What is not proven goes back: it may be why."""
        if self.state is State.ROLLING_BACK:
            self._puts, self.is_refused = 0, False  # the owner of the limits restores ours first
            return
        if self.running.applied_ns is not None:
            self._tell(now_ns, Decision.VOIDED, Reason.ENGINE_RESTARTED)
        self._memory.did_not_help(self.running.proposal.values, self.running.load)
        self._go_back(now_ns, Reason.ENGINE_RESTARTED)

    def operated(self, now_ns: int, names: Collection[str]) -> None:
        """An operator changed limits. Those of the attempt are not touched any more, and the rest
        of it goes back; others make what was measured void."""
        running = self.running
        theirs = running.back.keys() & set(whole(names))
        if not theirs:
            if self.state is State.MEASURING:
                self._void(now_ns, Reason.OPERATOR)
            return
        if running.applied_ns is not None and self.state is State.MEASURING:
            self._tell(now_ns, Decision.VOIDED, Reason.OPERATOR)
        running.back = {name: v for name, v in running.back.items() if name not in theirs}
        if running.back:
            self._go_back(now_ns, Reason.OPERATOR)
        else:
            in_force = self._books.in_force
            values: Values = {name: in_force.get(name) for name in sorted(theirs)}
            self._desk.stop(now_ns, values, number=running.number)
            self._end(now_ns)

    def _apply(self, now_ns: int) -> None:
        running, set_ns = self.running, self._books.set_by_us_ns
        if set_ns is not None and self._is_in_force(running.proposal.values):
            running.applied(self._books, set_ns)
            self._memory.changed(running.proposal.values, now_ns)
            self._tell(now_ns, Decision.APPLIED, Reason.GAIN)
            self._go(State.MEASURING, now_ns)
        elif self.is_refused:
            self._memory.did_not_help(running.proposal.values, running.load)
            self._go_back(now_ns, Reason.NOT_CONFIRMED)
        elif now_ns - self.since_ns > CONFIRM_WITHIN_NS:
            self._go_back(now_ns, Reason.NOT_CONFIRMED)  # it may yet be put in force

    def _measure(self, now_ns: int) -> None:
        running = self.running
        assert running.applied_ns is not None
        if is_other_load(running.load, self._books.load(running.applied_ns, now_ns)):
            self._void(now_ns, Reason.LOAD_CHANGED)
            return
        result = running.judge(self._books, now_ns)
        if result is None:
            return
        if result.is_good:
            self._keep(now_ns, result.reason)
            return
        if result.reason is Reason.WORSE and result.slo_class in running.had_backlog:
            self._void(now_ns, Reason.BACKLOG)
            return
        if result.reason in (Reason.WORSE, Reason.PROMISE_MISSED):
            self._memory.did_not_help(running.proposal.values, running.load)
        self._go_back(now_ns, result.reason, result.slo_class)

    def _void(self, now_ns: int, reason: Reason) -> None:
        """What was measured does not count. A search of what is now says whether to go back."""
        self._tell(now_ns, Decision.VOIDED, reason)
        self.asked = None
        self._why = (reason, "")
        self._go(State.RECHECK, now_ns)

    def _recheck(self, now_ns: int) -> None:
        if self.asked is None:
            is_due = now_ns - self.since_ns >= RECHECK_NS
            if is_due and not self._desk.is_searching(now_ns):
                self.asked = self._desk.ask(now_ns)
        elif self.asked.answer is not None:
            best = self.asked.answer.best_runtime
            ours, back = self.running.proposal.values, self.running.back
            if best is not None and leads_back(values_of(best), ours, back):
                self._go_back(now_ns, *self._why)
            else:
                self._keep(now_ns, Reason.NO_GAIN_IN_GOING_BACK)
        elif self.asked.has_failed or now_ns - self.asked.at_ns > ANSWER_WITHIN_NS:
            self._go_back(now_ns, Reason.NO_ANSWER)

    def _keep(self, now_ns: int, reason: Reason) -> None:
        self._tell(now_ns, Decision.KEPT, reason)
        self._memory.kept(now_ns)
        self.is_over = True

    def _go_back(self, now_ns: int, reason: Reason, slo_class: str = "") -> None:
        self._why = (reason, slo_class)
        self._puts, self._put_ns, self.is_refused = 0, 0, False
        self._go(State.ROLLING_BACK, now_ns)
        self._roll_back(now_ns)

    def _roll_back(self, now_ns: int) -> None:
        """Until the engine has confirmed it; an engine that restarts is waited for."""
        running, books = self.running, self._books
        reason, slo_class = self._why
        if self._is_back(now_ns):
            if running.applied_ns is not None:
                self._memory.changed(running.proposal.values, now_ns)
            self._tell(now_ns, Decision.ROLLED_BACK, reason, slo_class)
            self._end(now_ns)
        elif self.is_refused:
            self._give_up(now_ns)
        elif not books.in_force:
            return
        elif not self._puts or now_ns - self._put_ns >= CONFIRM_WITHIN_NS:
            if self._puts >= _PUT_TRIES:
                self._give_up(now_ns)
                return
            self._puts += 1
            self._put_ns, books.set_by_us_ns = now_ns, None
            self._desk.put(running.back, f"back: {words.said(reason, slo_class)}")

    def _is_back(self, now_ns: int) -> bool:
        """Its values are in force since they were put. An engine that has started may have them for
        a moment, until the owner of the limits restores ours: so the engine's word counts, or that
        nothing else came for as long as it has for one, or that there was nothing to set."""
        if not self._puts or not self._is_in_force(self.running.back):
            return False
        is_told = self._books.set_by_us_ns is not None or self.is_refused
        return is_told or now_ns - self._put_ns >= CONFIRM_WITHIN_NS

    def _give_up(self, now_ns: int) -> None:
        """It cannot be undone: the limits stay as they are, and are left alone."""
        back = self.running.back
        self._memory.stop(back)
        values: Values = {name: self._books.in_force.get(name) for name in back}
        self._desk.stop(now_ns, values, Reason.NOT_CONFIRMED, self.running.number)
        self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        """It was not kept."""
        self._memory.rolled_back(now_ns)
        self.is_over = True

    def _is_in_force(self, values: Values) -> bool:
        in_force = self._books.in_force
        return bool(in_force) and all(in_force.get(name) == v for name, v in values.items())

    def _tell(self, now_ns: int, decision: Decision, reason: Reason, slo_class: str = "") -> None:
        """Record a decision with what was measured so far."""
        running, proposal = self.running, self.running.proposal
        measured = running.shares(self._books, now_ns)
        came = words.came(measured, proposal.gaining)
        why = words.said(reason, slo_class)
        if decision is Decision.APPLIED:
            why = f"promised: {words.promise(proposal)}"
        elif came:
            why = f"{why}; {came}"
        self._desk.decide(
            now_ns, running.number, decision, reason, proposal.values, proposal.was,
            before=proposal.shares, promised=proposal.promised, measured=measured, why=why,
        )  # fmt: skip

    def _go(self, state: State, now_ns: int) -> None:
        self.state, self.since_ns = state, now_ns
