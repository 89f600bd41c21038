"""The fact that the autopilot writes: each decision about a change of limits."""

from __future__ import annotations

from telemetry.facts.base import FactStruct as _Fact
from telemetry.facts.limits import LimitValue
from telemetry.facts.reasons import AutopilotDecision, AutopilotReason


class AutopilotDecided(_Fact, frozen=True):
    """The autopilot decided about `limits`, whose values were `was` before.

    All decisions about one proposal have its `number`, from 1; 0: about no proposal. By SLO class,
    as shares of requests that meet their SLO: `before` is what was measured before the change,
    `promised` what it should become, `measured` what came of it so far. `why` says it in words.
    """

    at_ns: int
    number: int
    decision: AutopilotDecision
    reason: AutopilotReason
    limits: dict[str, LimitValue]
    was: dict[str, LimitValue]
    before: dict[str, float]
    promised: dict[str, float]
    measured: dict[str, float]
    why: str
