"""What keeps the autopilot from swinging: cool-downs that double, settings that were rolled back,
and limits that an operator has taken over. All of it lasts until the server restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diagnosis.autopilot.books import Load
from diagnosis.autopilot.proposal import Values, whole
from diagnosis.autopilot.thresholds import COOL_MOST_NS, COOL_NS, FORGOTTEN_NS, SAME_LOAD
from telemetry.facts.limits import LimitValue

_TRIED_KEPT = 64
_MOST_DOUBLINGS = 30  # the longest cool-down is reached long before


@dataclass(slots=True)
class _Changed:
    times: int = 0
    last_ns: int = 0

    @property
    def cool_ns(self) -> int:
        """So long after the last change; it doubles with each."""
        return min(COOL_MOST_NS, COOL_NS << min(_MOST_DOUBLINGS, max(0, self.times - 1)))


@dataclass(slots=True)
class Memory:
    """`stopped` limits are an operator's. `rollbacks` since something was kept."""

    stopped: set[str] = field(default_factory=set)
    rollbacks: int = 0
    cool_until_ns: int = 0
    _changed: dict[str, _Changed] = field(default_factory=dict)
    _tried: deque[tuple[Values, Load]] = field(default_factory=lambda: deque(maxlen=_TRIED_KEPT))

    def changed(self, names: Iterable[str], now_ns: int) -> None:
        """The autopilot has changed these limits, forth or back."""
        for name in whole(names):
            one = self._changed.setdefault(name, _Changed())
            if now_ns - one.last_ns > FORGOTTEN_NS:
                one.times = 0
            one.times += 1
            one.last_ns = now_ns

    def stop(self, names: Iterable[str]) -> list[str]:
        """Leave these limits alone from now on; returns those that were not until now."""
        fresh = [name for name in whole(names) if name not in self.stopped]
        self.stopped.update(fresh)
        return fresh

    def kept(self, now_ns: int) -> None:
        self.rollbacks = 0
        self.cool_until_ns = now_ns + COOL_NS

    def rolled_back(self, now_ns: int) -> None:
        self.rollbacks += 1
        doublings = min(_MOST_DOUBLINGS, self.rollbacks)
        self.cool_until_ns = now_ns + min(COOL_MOST_NS, COOL_NS << doublings)

    def did_not_help(self, values: Values, load: Load) -> None:
        """It is not tried again under this load."""
        self._tried.append((values, load))

    def is_cool(self, names: Iterable[str], now_ns: int) -> bool:
        """Whether these limits may change again."""
        found = (self._changed.get(name) for name in names)
        return all(one is None or now_ns - one.last_ns >= one.cool_ns for one in found)

    def cools_until_ns(self) -> dict[str, int]:
        return {name: one.last_ns + one.cool_ns for name, one in self._changed.items()}

    def was_tried(self, values: Mapping[str, LimitValue], load: Load) -> bool:
        return any(tried == values and is_same_load(then, load) for tried, then in self._tried)

    @property
    def tried(self) -> list[Values]:
        return [values for values, _ in self._tried]


def is_same_load(one: Load, other: Load) -> bool:
    """Within SAME_LOAD in requests and in prompt tokens a second."""
    pairs = ((one.requests_per_s, other.requests_per_s), (one.tokens_per_s, other.tokens_per_s))
    return all(a == b or (min(a, b) > 0 and max(a, b) <= SAME_LOAD * min(a, b)) for a, b in pairs)
