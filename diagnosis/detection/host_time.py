"""How long the engine's thread ran, of the time in which it had work, by the host's samples.

A sample tells of the second before it, and a window begins and ends within one. So the engine's
work is counted over the samples' own spans: where an idle engine gets busy in the middle of a
sample, the half in which it slept for want of work is not taken for time that it lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diagnosis.detection.steps import Steps
from telemetry.facts.host_records import HostSampled


class HostTime(NamedTuple):
    """Sums of samples, as far as they are of one window, in ns: `window_ns` covered by samples,
    `busy_ns` of them with work for the engine's loop, and what its thread did: ran, or was ready
    without a CPU (`wait_ns`). Its quota stopped it for `throttled_ns` of `quota_window_ns`, which
    is 0 where that cannot be measured. All 0: no sample."""

    window_ns: float = 0.0
    busy_ns: float = 0.0
    run_ns: float = 0.0
    wait_ns: float = 0.0
    throttled_ns: float = 0.0
    quota_window_ns: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether a sample had the times of the engine's thread."""
        return bool(self.run_ns or self.wait_ns)

    @property
    def lost_ns(self) -> float:
        """The part of `busy_ns` in which the thread neither ran nor was ready to run, in ns."""
        return max(0.0, self.busy_ns - self.run_ns - self.wait_ns) if self.run_ns else 0.0


NOT_SAMPLED = HostTime()


def host_time(samples: Sequence[HostSampled], steps: Steps, begin_ns: int) -> HostTime:
    """The samples that were taken in a window from `begin_ns` on and have the times of the engine's
    thread; `steps` are those of all their spans. Of a sample that began before the window, the part
    counts that the engine worked in it: its thread is taken to have been as slow in both."""
    samples = [one for one in samples if one.engine_run_ns is not None]
    if not samples:
        return NOT_SAMPLED
    ends_ns = np.array([one.at_ns for one in samples], dtype=np.float64)
    spans_ns = np.array([one.window_ns for one in samples], dtype=np.float64)
    begins_ns = ends_ns - spans_ns
    inner_ns = np.maximum(begins_ns, begin_ns)
    ended, began, entered = busy_before(steps, np.stack([ends_ns, begins_ns, inner_ns]))
    busy_ns = ended - entered
    share = np.where(ended > began, busy_ns / np.maximum(1.0, ended - began), 0.0)
    covered_ns = ends_ns - inner_ns
    return HostTime(
        window_ns=float(covered_ns.sum()),
        busy_ns=float(busy_ns.sum()),
        run_ns=float(share @ [one.engine_run_ns or 0 for one in samples]),
        wait_ns=float(share @ [one.engine_wait_ns or 0 for one in samples]),
        throttled_ns=float(share @ [one.throttled_ns or 0 for one in samples]),
        quota_window_ns=float(covered_ns @ [one.throttled_ns is not None for one in samples]),
    )


def busy_before(steps: Steps, at_ns: np.ndarray) -> np.ndarray:
    """For each moment, the ns of the steps' turns before it."""
    if not len(steps):
        return np.zeros(at_ns.shape)
    index = np.searchsorted(steps.end_ns, at_ns, side="right")
    done_ns = np.concatenate([[0.0], np.cumsum(steps.turn_ns)])[index]
    begins_ns = np.append(steps.end_ns - steps.turn_ns, np.inf)[index]
    found: np.ndarray = done_ns + np.maximum(0.0, at_ns - begins_ns)
    return found
