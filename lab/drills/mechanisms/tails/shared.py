"""How every mechanism of the tail is declared."""

from __future__ import annotations

from typing import Any

from lab.drills.harm import Harm, HarmMeasure
from lab.drills.mechanism import TAILS, TEST, Mechanism

LATE_FIRST = Harm(measure=HarmMeasure.TTFT_P95, everyone=True)
OTHERS_LATE_FIRST = Harm(measure=HarmMeasure.TTFT_P95)
GAPS = Harm(measure=HarmMeasure.GAP_SHARE, everyone=True)
OTHERS_GAPS = Harm(measure=HarmMeasure.GAP_SHARE)

SHORT_STEPS = ("--max-batched-tokens", "64")
"""For faults that are measured by gaps: prompts alone then put no gap above the target into others,
so that nearly no request has one in the reference."""

_OF_TEST = {HarmMeasure.TTFT_P95: "ttft_p95", HarmMeasure.GAP_SHARE: "stall_p95"}


def tail(ends: tuple[float, float], harm: Harm, **more: Any) -> Mechanism:
    """A mechanism whose intensity lies between the gentle and the fierce of the `ends`; the middle
    one is their geometric mean, for `phasescope drill`."""
    gentle, fierce = ends
    middle = float(f"{(gentle * fierce) ** 0.5:.3g}")
    return Mechanism(
        split=TEST,
        series=TAILS,
        levels=(gentle, middle, fierce),
        ends=ends,
        tail=harm,
        harms=(_OF_TEST[harm.measure],),
        **more,
    )
