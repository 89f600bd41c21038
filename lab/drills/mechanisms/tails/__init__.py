"""Faults of the tail: one for each class that delays requests, as gentle as one likes.

Their intensity is set on the machine at hand before an episode (`lab.drills.calibration`): so that
the p95 of TTFT doubles, or every third request has a gap above its target, and so that it is clear.
"""

from __future__ import annotations

from lab.drills.mechanism import Mechanism
from lab.drills.mechanisms.tails.demand import DEMAND_TAILS
from lab.drills.mechanisms.tails.limits import LIMIT_TAILS
from lab.drills.mechanisms.tails.machine import MACHINE_TAILS
from lab.drills.mechanisms.tails.readers import READER_TAILS
from lab.drills.mechanisms.tails.work import WORK_TAILS

TAIL_MECHANISMS: tuple[Mechanism, ...] = (
    *DEMAND_TAILS,
    *LIMIT_TAILS,
    *MACHINE_TAILS,
    *WORK_TAILS,
    *READER_TAILS,
)
