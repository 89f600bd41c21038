"""Has the one blow of an alarm passed? A burst that drains is no fault, and is not said for long.

The sums of an alarm fall slowly, so that a fault that pauses is held. Of an alarm that has had one
blow only, nothing is said any more as soon as all its sums have been falling for three seconds. The
sums are cut at a ceiling and see late that a queue drains: of a queue, nothing is said while fewer
than half as many requests are delayed as at its worst, if it drains as fast: half in three seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from diagnosis.detection.tail_thresholds import FALL_LEVEL, FALL_TICKS, RISE_LEVEL
from diagnosis.thresholds import EASED_SHARE, SUM_CEILING


class OneBlow:
    """Follows the levels of the sums of one alarm, and the number of requests that are delayed.
    `has_passed`: its one blow is over. It is False again when a sum has risen again, and stays so
    if a cause was said of a blow before. `is_draining`: it has had one blow only, the number is
    below half of its peak, and has halved within three seconds since it is."""

    def __init__(self) -> None:
        self.has_passed = False
        self.is_draining = False
        self._peak = 0.0
        self._was_said = False
        self._came_back = False
        self._levels: deque[Sequence[float]] = deque(maxlen=FALL_TICKS + 1)
        self._delayed: deque[float] = deque(maxlen=FALL_TICKS + 1)

    def add(self, levels: Sequence[float], excess: float, *, is_said: bool) -> None:
        """The levels at the end of a tick, each 1 at its threshold, the number of requests that
        are delayed, and whether a cause stands."""
        self._was_said = self._was_said or is_said
        self._levels.append(levels)
        changes = [now - before for before, now in zip(self._levels[0], levels, strict=True)]
        lowest = (min(column) for column in zip(*self._levels, strict=True))
        rise = max(now - low for low, now in zip(lowest, levels, strict=True))
        if self.has_passed and rise >= RISE_LEVEL:
            self.has_passed, self._came_back = False, self._was_said
        is_falling = max(changes) <= 0 and sum(changes) <= -FALL_LEVEL
        is_falling = is_falling and max(levels) < SUM_CEILING  # else it is as high as can be seen
        if is_falling and len(self._levels) > FALL_TICKS and not self._came_back:
            self.has_passed = True
        self._delayed.append(excess)
        self._peak = max(self._peak, excess)
        has_eased = excess < EASED_SHARE * self._peak and not self._came_back
        has_halved = excess < EASED_SHARE * self._delayed[0]
        self.is_draining = has_eased and (self.is_draining or has_halved)
