"""What is stated of time across machines, over many simulated fleets whose truth is known.

    python -m benchmarks.clocks              # 240,000 requests; benchmarks/results/clocks.json
    python -m benchmarks.clocks --seeds 2    # a smoke test; prints only

Clocks are up to 100 s apart and drift up to 200 ppm at rates that change. Delays differ each way,
and are now and then many times the usual one. In half of the fleets clocks are set, by 2 to 100 s;
what is stated of a sequence that lived between a step and the frame that shows it is counted apart.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.numbers.quantiles import quantile_sorted
from tests.support.worlds.placed_spans import misstated, spans_of, sum_is_off_ns
from tests.support.worlds.skewed_fleet import SkewedFleet

RESULT = Path(__file__).parent / "results" / "clocks.json"
WIRES_NS = (20_000, 300_000, 3_000_000)
REQUESTS = 1000


@dataclass
class Tally:
    """The sums over one kind of fleet."""

    requests: int = 0
    sums_off: int = 0
    located: int = 0
    misstated: int = 0
    in_doubt: int = 0
    misstated_in_doubt: int = 0
    steps_made: int = 0
    steps_found: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    epsilons_ns: list[int] = field(default_factory=list)
    wires_ns: list[int] = field(default_factory=list)

    def add(self, fleet: SkewedFleet) -> None:
        clocks = FleetClocks()
        spans = spans_of(fleet, clocks)
        doubts = [(n.engine, n.step.since_ns, n.step.at_ns) for n in clocks.steps]
        self.steps_made += sum(map(len, fleet.jumps_ns.values()))
        self.steps_found += clocks.steps_found
        for seq_id, span in spans.items():
            self.requests += 1
            self.findings.update(one.value for one in span.findings)
            self.sums_off += span.remote_ns is not None and sum_is_off_ns(span) != 0
            is_wrong = bool(misstated(span, fleet.truths[seq_id]))
            if _in_doubt(span, doubts):
                self.in_doubt += 1
                self.misstated_in_doubt += is_wrong
            else:
                self.misstated += is_wrong
            if span.received is not None:
                self.located += 1
                self.epsilons_ns.append(span.received.epsilon_ns)
            if span.wire_ns is not None:
                self.wires_ns.append(span.wire_ns)

    def as_json(self) -> dict[str, Any]:
        names = ("requests", "sums_off", "located", "misstated", "in_doubt", "misstated_in_doubt",
                 "steps_made", "steps_found")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "findings": dict(sorted(self.findings.items())),
            "received_epsilon_us": _quantiles_us(self.epsilons_ns),
            "wire_us": _quantiles_us(self.wires_ns),
        }


def _in_doubt(span: RemoteSpan, doubts: list[tuple[str, int, int]]) -> bool:
    return any(
        engine == span.engine and since_ns < span.arrived_ns and span.sent_ns <= at_ns
        for engine, since_ns, at_ns in doubts
    )


def _quantiles_us(values_ns: list[int]) -> dict[str, float]:
    ranked = sorted(values_ns)
    found = {name: quantile_sorted(ranked, q) for name, q in (("p50", 0.5), ("p99", 0.99))}
    return {name: round(ns / 1000, 1) for name, ns in found.items() if ns is not None}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.clocks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="fleets of each kind")
    seeds = parser.parse_args().seeds
    found: dict[str, Any] = {}
    for with_jumps in (False, True):
        for wire_ns in WIRES_NS:
            tally = Tally()
            for seed in range(seeds):
                tally.add(SkewedFleet(seed, 3, REQUESTS, 200, wire_ns, with_jumps))
            kind = "clocks are set" if with_jumps else "no steps"
            found[f"{kind}, usual delay {wire_ns // 1000} us"] = tally.as_json()
    text = json.dumps({"seeds": seeds, "fleets": found}, indent=1)
    print(text)
    if seeds == parser.get_default("seeds"):
        RESULT.write_text(text + "\n")
    wrong = sum(one["sums_off"] + one["misstated"] for one in found.values())
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
