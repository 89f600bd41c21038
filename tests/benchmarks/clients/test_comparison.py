"""Percentiles of two clocks are of the same requests, or there are none."""

from __future__ import annotations

import pytest

from benchmarks.clients.comparison import Latency, compare, worst_request_pct
from benchmarks.clients.environments import CLIENTS, version_of

MS = 1_000_000


def latencies(ttft_ms: list[float], itl_ms: float) -> dict[str, Latency]:
    return {str(n): Latency(one * MS, itl_ms * MS) for n, one in enumerate(ttft_ms)}


def test_a_tool_that_is_late_by_the_same_share_is_off_by_that_share() -> None:
    ours = latencies([100, 200, 300, 400], 10)
    rows = compare(latencies([102, 204, 306, 408], 10.5), ours)

    assert {(row.measure, round(row.off_pct, 6)) for row in rows} == {("ttft", 2), ("itl", 5)}
    assert [row.measure for row in rows if row.agrees] == ["ttft"] * 4


def test_requests_that_only_the_server_knows_do_not_count() -> None:
    """Its warm-up, and what a tool sends before it measures."""
    ours = latencies([100, 200, 9000], 10)

    assert all(row.off_pct == 0 for row in compare(latencies([100, 200], 10), ours))


def test_a_request_that_the_server_does_not_know_ends_the_comparison() -> None:
    with pytest.raises(ValueError, match="1 of 3"):
        compare(latencies([1, 2, 3], 1), latencies([1, 2], 1))


def test_requests_of_one_token_have_no_gap() -> None:
    ours = {"a": Latency(5.0, None), "b": Latency(5.0, 2.0)}

    assert {row.ours_ns for row in compare(ours, ours) if row.measure == "itl"} == {2.0}


def test_swapped_requests_hide_in_percentiles_and_not_in_the_worst_one() -> None:
    theirs, ours = latencies([100, 200], 1), latencies([200, 100], 1)

    assert all(row.off_pct == 0 for row in compare(theirs, ours))
    assert worst_request_pct(theirs, ours) == 100


@pytest.mark.parametrize("name", CLIENTS)
def test_each_client_has_a_lock_that_names_it(name: str) -> None:
    assert version_of(name)[0].isdigit()
