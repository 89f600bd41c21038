"""One prefix brings more requests to the engine that holds it than that can serve in time."""

from __future__ import annotations

from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import PREFIX, FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import (
    HOT_AT_ONE,
    HOT_BESIDE_USUAL,
    HOT_SHARE,
    LATE_NS,
    LEAST_HOT,
)
from diagnosis.routed.window import Window

R = Routed


def found(window: Window) -> FleetFault | None:
    """The prefix, if it is hot, and the engine that has its requests."""
    hottest = window.hottest()
    if hottest is None or not window.has_history:
        return None
    prefix, count = hottest
    share, usual = count / window.routed, window.usual_share(prefix) or 0.0
    if count < LEAST_HOT or share < HOT_SHARE or share < HOT_BESIDE_USUAL * usual:
        return None
    engine, there = window.picks_of(prefix).most_common(1)[0]
    wait_ns, others_ns = window.wait_ns(engine), window.others_wait_ns(engine)
    if there < HOT_AT_ONE * count or wait_ns is None:
        return None
    beside_ns = window.usual_wait_ns if others_ns is None else others_ns
    if beside_ns is None or wait_ns - beside_ns < LATE_NS:
        return None
    late = window.late(engine)
    name = f"{PREFIX}{prefix:016x}"
    return FleetFault(
        symptom=FleetSymptom.HOT_PREFIX,
        claim=f"{share:.0%} of the requests begin with {name}, and {there / count:.0%} of these go "
        f"to {engine}, which has it; they wait there while others have room",
        harm_ms=round(sum(late_ns for _, late_ns in late) / 1e6, 1),
        evidence=(
            R.PREFIX_SHARE.of(share),
            R.USUAL_PREFIX_SHARE.of(usual),
            R.PREFIX_AT_ONE.of(there / count),
            R.WAIT_EACH.of(wait_ns / 1e6),
            R.OTHERS_WAIT_EACH.of(None if others_ns is None else others_ns / 1e6),
            R.LATE_FIRSTS.of(window.late_count(late)),
        ),
        culprits=(name, engine),
        victims=tuple(first.request_id for first, _ in late[:8]),
        intervention=f"let more engines have {name}: a lower bound on load, or least_finish",
        runbook=runbook_of(FleetSymptom.HOT_PREFIX),
    )
