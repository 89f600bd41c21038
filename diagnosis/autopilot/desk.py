"""What goes out: decisions, and wishes to search and to set limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from diagnosis.autopilot import words
from diagnosis.autopilot.proposal import Proposal, Values
from diagnosis.autopilot.thresholds import ANSWER_WITHIN_NS
from diagnosis.settings_search.answer import SettingsAnswer
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason


class State(StrEnum):
    """Where the autopilot is."""

    WATCH = "watch"
    WAIT = "wait"  # a search runs
    ADVISE = "advise"  # a proposal stands
    APPLYING = "applying"  # sent to the engine
    MEASURING = "measuring"
    RECHECK = "recheck"  # something else changed; a search of what is now decides
    ROLLING_BACK = "rolling_back"
    COOL_DOWN = "cool_down"


@dataclass(frozen=True, slots=True)
class Ask:
    """A wish: search the last minutes for better limits, and call `on_answer` with `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Put:
    """A wish: put these limits in force, by `books.BY`."""

    values: Values
    why: str


Output = Ask | Put | AutopilotDecided


@dataclass(slots=True)
class Asked:
    """A search that was asked for, and what came of it."""

    number: int
    at_ns: int
    answer: SettingsAnswer | None = None
    has_failed: bool = False


@dataclass(slots=True)
class Desk:
    """Collects what goes out until it is taken, and knows the last search that was asked for."""

    _out: list[Output] = field(default_factory=list)
    _asked: Asked | None = None

    def take(self) -> list[Output]:
        found, self._out = self._out, []
        return found

    def ask(self, now_ns: int) -> Asked:
        number = 1 if self._asked is None else self._asked.number + 1
        self._asked = Asked(number, now_ns)
        self._out.append(Ask(number))
        return self._asked

    def answered(self, number: int, answer: SettingsAnswer | None) -> None:
        """None: the search failed. The answer to an earlier one is nobody's any more."""
        if self._asked is not None and self._asked.number == number:
            self._asked.answer, self._asked.has_failed = answer, answer is None

    def is_searching(self, now_ns: int) -> bool:
        """Whether a search runs, even if nobody waits for its answer any more."""
        asked = self._asked
        if asked is None or asked.answer is not None or asked.has_failed:
            return False
        return now_ns - asked.at_ns <= ANSWER_WITHIN_NS

    def put(self, values: Values, why: str) -> None:
        self._out.append(Put(values, words.cut(why)))

    def say(self, now_ns: int, number: int, proposal: Proposal, decision: Decision) -> None:
        """A proposal is made, or again."""
        self.decide(
            now_ns, number, decision, Reason.GAIN, proposal.values, proposal.was,
            before=proposal.shares, promised=proposal.promised, why=words.promise(proposal),
        )  # fmt: skip

    def stop(
        self, now_ns: int, values: Values, reason: Reason = Reason.OPERATOR, number: int = 0
    ) -> None:
        """These limits are left alone from now on."""
        why = f"{words.said(reason)}; left alone until a restart: {', '.join(values)}"
        self.decide(now_ns, number, Decision.STOPPED, reason, values, {}, why=why)

    def decide(
        self,
        now_ns: int,
        number: int,
        decision: Decision,
        reason: Reason,
        values: Values,
        was: Values,
        *,
        before: dict[str, float] | None = None,
        promised: dict[str, float] | None = None,
        measured: dict[str, float] | None = None,
        why: str = "",
    ) -> None:
        self._out.append(
            AutopilotDecided(
                now_ns, number, decision, reason, values, was,
                before or {}, promised or {}, measured or {}, words.cut(why),
            )
        )  # fmt: skip
