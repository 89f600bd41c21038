"""How a forecast of an attached vLLM is judged."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.attach.whatif import Arrival, Round, forecasts, send, table
from benchmarks.contract.lateness import is_late
from diagnosis.root_cause.outcomes import Latency
from tests.support.servers.scripted_llm import ScriptedServer, whole

CAME_MS = 1000.0


def latency(p50_ms: float) -> Latency:
    return Latency(count=34, p50_ms=p50_ms, p90_ms=p50_ms, p99_ms=p50_ms, max_ms=p50_ms)


def rounds(base_ms: float, *errors: float) -> list[Round]:
    """Of forecasts that are off by so much, beside bases that do not change."""
    came = latency(CAME_MS)
    return [Round(latency(base_ms), latency(CAME_MS * (1 + one)), came) for one in errors]


def test_errors_of_minus_36_7_and_21_percent_are_not_an_error_of_7() -> None:
    """Their sizes count; and the forecast is far nearer than the base, half of what came."""
    found = {"seqs ttft": rounds(500.0, -0.36, 0.07, 0.21)}

    error, nearer = forecasts(found, {"ttft": [500.0, 510.0]})

    assert (error.value, error.holds) == (pytest.approx(0.21), False)
    assert (nearer.value, nearer.holds) == (pytest.approx(0.5 - 0.21), True)
    assert table(found, {"ttft": [500.0, 510.0]})[1][-3:] == [
        pytest.approx(21.0), "-36, +7, +21", pytest.approx(50.0),
    ]  # fmt: skip


def test_a_forecast_that_is_no_nearer_than_the_base_does_not_hold() -> None:
    """Where the change does more than what equal runs are apart."""
    equal = {"tpot": [800.0, 820.0]}
    error, nearer = forecasts({"long tpot": rounds(800.0, 0.3, 0.3)}, equal)

    assert not error.holds
    assert (nearer.value, nearer.holds) == (pytest.approx(-0.1), False)


def test_an_effect_within_what_equal_runs_are_apart_asks_for_no_better_than_the_base() -> None:
    """It cannot be told from noise."""
    equal = {"tpot": [800.0, 1100.0]}
    (error,) = forecasts({"long tpot": rounds(900.0, 0.05, -0.05, 0.2)}, equal)

    assert (error.value, error.holds) == (pytest.approx(0.05), True)


def test_a_request_that_was_sent_late_is_late() -> None:
    """Due a second before the client came to it."""
    workload = [Arrival(-1.0, "completion", "seed", None)]
    with ScriptedServer(lambda number, body: whole(3)) as server:
        (stream,) = asyncio.run(send(server.port, workload))

    assert stream.is_whole
    assert stream.late_ms >= 1000.0
    assert is_late([stream.late_ms])
