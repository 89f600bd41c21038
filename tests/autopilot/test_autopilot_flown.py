"""The autopilot on simulated engines: the production scheduler, and the real search of its record.

FL-1  A setting that is wrong is found, set by the autopilot, measured and kept.
FL-2  Afterwards each class is as good as with a good setting from the start, within noise.
FL-3  On a server that is well, or that no limit can help, nothing is set.
"""

from __future__ import annotations

import dataclasses

import pytest

from telemetry.facts.limits import LimitValue
from telemetry.facts.reasons import AutopilotDecision as Decision
from tests.support.worlds.flown import Flown
from tests.support.worlds.promised import GOOD, Kind, Promised

pytestmark = pytest.mark.long

CHAT = Kind(rate_per_s=5.0)
LONG = Kind(rate_per_s=0.5, prompt=(600, 1200), outputs=(4, 20), slo_class="batch")
CALM = Kind(rate_per_s=2.0, tenant="calm")
FLOOD = Kind(rate_per_s=6.0, outputs=(60, 120), tenant="flood", slo_class="batch")
SECONDS = 150.0

WRONG = {
    "max_batched_tokens": Promised(
        kinds=(CHAT, LONG),
        limits=dataclasses.replace(GOOD, budget_tokens=2048),
        seconds=SECONDS,
    ),
    "max_num_seqs": Promised(kinds=(CHAT,), seconds=SECONDS),
    "tenant_max_seqs": Promised(
        kinds=(CALM, FLOOD),
        limits=dataclasses.replace(GOOD, max_seqs=8, slo_order=True),
        seconds=SECONDS,
    ),
}
SET: dict[str, dict[str, LimitValue]] = {"max_num_seqs": {"max_num_seqs": 2}}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_limit_is_found_set_measured_and_kept(name: str) -> None:
    promised = WRONG[name]
    flown = Flown(promised, seed=1, wrong=SET.get(name))
    flown.run()
    kept = flown.told(Decision.KEPT)

    assert kept, flown.decisions
    assert name in kept[0].limits
    assert not flown.told(Decision.ROLLED_BACK), flown.decisions
    assert flown.limit(name) == kept[0].limits[name]
    (gaining, *_) = [one for one, share in kept[0].promised.items() if share > kept[0].before[one]]
    assert flown.good_share(gaining, 90, SECONDS - 10) >= kept[0].before[gaining] + 0.1


def test_with_advice_only_nothing_is_set() -> None:
    wrong = SET["max_num_seqs"]
    promised = dataclasses.replace(WRONG["max_num_seqs"], seconds=70.0)
    flown = Flown(promised, seed=1, wrong=wrong, acts=False)
    flown.run()

    assert flown.told(Decision.PROPOSED)
    assert flown.limit("max_num_seqs") == 2
    assert not flown.told(Decision.APPLIED)


@pytest.mark.parametrize(
    ("promised", "most_changes"),
    [
        (Promised(kinds=(CHAT,), seconds=60.0), 0),
        (
            Promised(
                kinds=(Kind(rate_per_s=40.0),),
                limits=dataclasses.replace(GOOD, max_seqs=32),
                seconds=60.0,
            ),
            1,
        ),
    ],
    ids=["well", "overload"],
)
def test_nothing_is_made_worse_where_no_limit_helps(promised: Promised, most_changes: int) -> None:
    flown = Flown(promised, seed=1)
    flown.run()

    assert len(flown.told(Decision.APPLIED)) <= most_changes
    for back in flown.told(Decision.ROLLED_BACK):
        assert back.measured
