"""Does the what-if say whether prompts should be computed apart?

    python -m benchmarks.disaggregated.foretold

For each mix of `goodput`: a fleet of four engines that do both serves it in virtual time, at a rate
that only one of the two ways can serve (between the two goodputs that `goodput` has found). From
what its gateway recorded alone, `phasescope replay --set prefill=P --set decode=D` (which is
`lab.fleet.recorded.apart`) foretells the share of requests that would meet both targets with the
engines apart, for each ratio. The truth is a simulation of the same requests with that ratio, as
`goodput` makes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.disaggregated.goodput import (
    COSTS,
    ENGINES,
    GOOD,
    LINK,
    MIXES,
    NO_NOISE,
    REQUESTS,
    RESULTS,
    Layout,
    Mix,
    Setting,
    asks_of,
    cost_of,
    limits_of,
    shares,
    targets_of,
)  # fmt: skip
from lab.fleet.link import Link
from lab.fleet.outcome import Asked
from lab.fleet.recorded.apart import FleetApart
from lab.fleet.recorded.change import change_of
from lab.fleet.recorded.record import read_fleet
from lab.fleet.traffic import Session, Turn
from lab.fleet.twins.faults import TwinFaults
from lab.fleet.world import FleetScenario
from lab.simulation.sim_executor import FittedCost
from service.engine.inbox import SetStepCost
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.sequence_records import SequenceSent, TokensReceived
from telemetry.facts.records import Fact, RequestAccepted, SequenceSubmitted
from tests.lab.fleet.recorded_fleet import ServedFleet

OUT = RESULTS.with_name("disaggregated_foretold.json")
_QUIET_NS = 5_000_000_000


class TargetedFleet(ServedFleet):
    """Requests have the targets of the mix, which the router and the order of service go by."""

    targets_ns: tuple[int, int] = (0, 0)

    def _begin(self, request_id: str, asked: Asked) -> None:
        asked.ttft_target_ns, asked.itl_target_ns = self.targets_ns
        asked.max_tokens = asked.wanted_tokens
        super()._begin(request_id, asked)


def recorded(mix: Mix, cost: SetStepCost, rate: float, paced: bool) -> list[Fact]:
    """What the gateway of a fleet of engines that do both records."""
    ttft_ns, tpot_ns = targets_of(mix, cost)
    asks = asks_of(mix, rate, remote=False)
    sessions = tuple(
        Session(ask.at_ns, "", (), (Turn(len(ask.prompt), ask.max_tokens),), number)
        for number, ask in enumerate(asks)
    )
    scenario = FleetScenario(
        seed=1,
        engines=ENGINES,
        sessions=sessions,
        settings=RoutingSettings(seed=1),
        link=Link(),
        costs=(FittedCost(cost),),
        limits=limits_of(int(tpot_ns) if paced else None),
        faults=TwinFaults(),
    )
    fleet = TargetedFleet(scenario, asks[-1].at_ns + _QUIET_NS)
    fleet.targets_ns = (int(ttft_ns), int(tpot_ns))
    return fleet.recorded()


def share_good(facts: list[Fact], mix: Mix, cost: SetStepCost) -> float:
    """The share of requests whose first token and mean gap meet the targets of the mix."""
    ttft_ns, tpot_ns = targets_of(mix, cost)
    begin_ns: dict[int, int] = {}
    accepted: dict[str, int] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    tokens: Counter[int] = Counter()
    for fact in facts:
        if isinstance(fact, RequestAccepted):
            accepted[fact.request_id] = fact.at_ns
        elif isinstance(fact, SequenceSubmitted):
            begin_ns[fact.seq_id] = accepted[fact.request_id]
        elif isinstance(fact, SequenceSent):
            begin_ns.setdefault(fact.seq_id, fact.at_ns)
        elif isinstance(fact, TokensReceived):
            for row in fact.rows:
                first.setdefault(row.seq_id, fact.at_ns)
                last[row.seq_id] = fact.at_ns
                tokens[row.seq_id] += row.tokens
    good = 0
    for seq_id, begun_ns in begin_ns.items():
        if seq_id not in first:
            continue
        gaps = tokens[seq_id] - 1
        tpot = (last[seq_id] - first[seq_id]) / gaps if gaps else 0.0
        good += first[seq_id] - begun_ns <= ttft_ns and tpot <= tpot_ns
    return good / len(begin_ns)


def judge(mix: Mix, cost: SetStepCost, rates: dict[str, float]) -> dict[str, Any]:
    """One mix, at a rate between what both ways can serve."""
    ratios = range(1, ENGINES)
    paced = rates["paced"] > rates["fixed"]
    rate = (max(rates["fixed"], rates["paced"]) * rates["apart"]) ** 0.5
    facts = recorded(mix, cost, rate, paced)
    record = read_fleet(facts)
    together = share_good(facts, mix, cost)
    foretold: dict[str, float] = {}
    for n in ratios:
        words = (f"prefill={n}", f"decode={ENGINES - n}", f"link_gb_per_s={LINK.bytes_per_ns}")
        run = FleetApart(record, change_of(words))
        foretold[f"{n}+{ENGINES - n}"] = round(share_good(run.replayed(), mix, cost), 3)
    setting = Setting(mix, cost)
    true = {f"{n}+{ENGINES - n}": round(shares(setting, rate, Layout(n))[0], 3) for n in ratios}
    true_together = shares(setting, rate, Layout(paced=paced))[0]
    says = max(foretold.values()) > together
    is_so = max(true.values()) > true_together
    return {
        "mix": mix.name,
        "requests": REQUESTS,
        "requests_per_s": round(rate, 3),
        "together": {"recorded": round(together, 3), "goodput's": round(true_together, 3)},
        "apart": {"foretold": foretold, "simulated": true},
        "better_apart": {"foretold": says, "true": is_so},
        "right": says == is_so,
    }


def main() -> int:
    """The exit code: 1 if a mix was foretold wrongly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", type=Path, default=COSTS, help="what `step_costs` has written")
    parser.add_argument("--goodput", type=Path, default=RESULTS, help="what `goodput` has written")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    cost = cost_of(chosen.costs, NO_NOISE)
    found = []
    for mix, known in zip(MIXES, json.loads(chosen.goodput.read_text())["mixes"], strict=True):
        assert known["mix"] == mix.name, "both are made from the same mixes"
        found.append(judge(mix, cost, known["requests_per_s"]))
        print(json.dumps(found[-1]), flush=True)
    chosen.out.write_text(json.dumps({"good_share": GOOD, "mixes": found}, indent=1) + "\n")
    return int(not all(one["right"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
