"""Tables of the routing benchmark: sums over seeds, and the load that a policy can keep."""

from __future__ import annotations

from benchmarks.fleet.routing import KEPT, Piece, kept_table, table
from telemetry.facts.fleet.routing_records import RoutingPolicy


def _piece(policy: RoutingPolicy, rate: float, good: int, seed: int = 1) -> Piece:
    return Piece(
        trace="agentic", engines=8, rate=rate, seed=seed, policy=policy.value, requests=100,
        good=good, good_per_s=good / 10, verdicts={}, ttft_p50_ms=None, ttft_p99_ms=None,
        hit_share=0.0, cpu_s=0.0,
    )  # fmt: skip


def _pieces(shares: dict[RoutingPolicy, tuple[int, ...]]) -> list[Piece]:
    """At loads of 1, 2 and so on."""
    return [
        _piece(policy, float(rate), good)
        for policy, goods in shares.items()
        for rate, good in enumerate(goods, start=1)
    ]


def test_the_load_that_is_kept_lies_on_the_line_between_two_loads() -> None:
    assert KEPT == 0.95
    found = kept_table(
        _pieces(
            {
                RoutingPolicy.LEAST_FINISH: (100, 99, 79),
                RoutingPolicy.PREFIX_AFFINITY: (100, 99, 98),
                RoutingPolicy.ROUND_ROBIN: (94, 90, 60),
            }
        )
    )
    assert found.splitlines()[-1] == "| agentic | 8 | 2.20 | more than 3.0 | less than 1.0 |"


def test_a_fleet_of_one_load_has_no_line_for_the_load_that_is_kept() -> None:
    found = kept_table(_pieces(dict.fromkeys(RoutingPolicy, (100,))))
    assert len(found.splitlines()) == 2


def test_goodput_is_the_mean_of_the_seeds_and_compared_with_the_best_other() -> None:
    pieces = [
        *_pieces(
            {
                RoutingPolicy.LEAST_FINISH: (90,),
                RoutingPolicy.PREFIX_AFFINITY: (80,),
                RoutingPolicy.ROUND_ROBIN: (50,),
            }
        ),
        *(_piece(policy, 1.0, 70, seed=2) for policy in RoutingPolicy),
    ]
    assert table(pieces).splitlines()[-1] == (
        "| agentic | 8 | 1.0 | 8.0 | 7.5 | 6.0 | 1.067 | 1.333 |"
    )
