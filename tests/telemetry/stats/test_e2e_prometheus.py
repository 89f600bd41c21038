"""A real Prometheus scrapes a real server: quantiles, exemplars, rules and configuration."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from telemetry.metrics.metric import LATENCY_BOUNDS_S
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.prometheus_server import CONFIG, RULES, Prometheus, required
from tests.support.servers.server import Server, eventually

REQUESTS = 100  # as few as give each of the percents a request of its own
AT_ONCE = 8
PERCENTS = (50, 90, 95, 99, 99.9)
# half of them wait for a slot, so that a first token takes long enough for one percent of it
FLAGS = ("--model", "dummy:tiny", "--max-num-seqs", str(AT_ONCE // 2), "--threads", "1")


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver(protocol="grpc") as running:
        yield running


@dataclass(frozen=True)
class ClientTimes:
    """What a client measured, in s from just before it sent: first content, last byte."""

    ttft_s: float
    e2e_s: float


@pytest.fixture(scope="module")
def measured(receiver: OtlpReceiver) -> Iterator[tuple[Server, Prometheus, list[ClientTimes]]]:
    """A server under load, its Prometheus, and the clients' own log."""
    required()
    flags = (*FLAGS, "--otlp-endpoint", receiver.endpoint, "--vllm-metrics")
    with Server(*flags) as server, Prometheus(f"127.0.0.1:{server.port}") as prometheus:
        eventually(lambda: prometheus.value("up") == 1, "a first scrape", 60)
        log = asyncio.run(load(server.port))
        eventually(server.is_empty, "an empty engine")
        wanted = f"sum(histogram_count(phasescope_e2e_seconds)) == {REQUESTS}"
        eventually(lambda: prometheus.value(wanted), "all requests scraped", 60)
        yield server, prometheus, log


async def load(port: int) -> list[ClientTimes]:
    """REQUESTS completions of different lengths, AT_ONCE at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> ClientTimes:
        async with gate:
            return await completion(port, number, 100 + number * 37 % 250)

    return list(await asyncio.gather(*(one(number) for number in range(REQUESTS))))


async def completion(port: int, number: int, max_tokens: int) -> ClientTimes:
    """One stream; what comes is only looked through until its first event."""
    body = json.dumps(
        {
            "prompt": [10 + number % 50] * 8, "max_tokens": max_tokens, "ignore_eos": True,
            "seed": number, "stream": True,
        }
    ).encode()  # fmt: skip
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"x-request-id: load-{number}\r\nx-slo-class: batch\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    writer.write(head.encode() + body)
    answer, first = b"", None
    while piece := await reader.read(65536):
        answer += piece
        if first is None and b"data: {" in answer:
            first = time.perf_counter()
    ended = time.perf_counter()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert first is not None
    return ClientTimes(first - begin, ended - begin)


def percentile(values: list[float], percent: float) -> float:
    """By nearest rank."""
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def quantile(prometheus: Prometheus, metric: str, percent: float) -> float:
    found = prometheus.value(f"histogram_quantile({percent / 100}, sum({metric}))")
    assert found is not None, metric
    return found


Measured = tuple[Server, Prometheus, list[ClientTimes]]


def test_quantiles_of_native_histograms_are_those_of_the_exact_log(measured: Measured) -> None:
    """Against every request's own nanoseconds, E2E and each gap between tokens: within 1 %."""
    server, prometheus, _ = measured
    facts = [server.facts_of(f"load-{number}") for number in range(REQUESTS)]
    exact_s = [fact["e2e_ns"] / 1e9 for fact in facts]

    assert prometheus.value("sum(histogram_count(phasescope_e2e_seconds))") == REQUESTS
    total_s = prometheus.value("sum(histogram_sum(phasescope_e2e_seconds))")
    assert total_s == pytest.approx(sum(exact_s), rel=1e-9)
    for percent in PERCENTS:
        shown_s = quantile(prometheus, "phasescope_e2e_seconds", percent)
        assert shown_s == pytest.approx(percentile(exact_s, percent), rel=0.01), percent
    ttft_s = [fact["ttft_ns"] / 1e9 for fact in facts]
    for percent in PERCENTS:
        shown_s = quantile(prometheus, "phasescope_ttft_seconds", percent)
        assert shown_s == pytest.approx(percentile(ttft_s, percent), rel=0.01), percent


def test_quantiles_agree_with_the_log_that_the_clients_kept(measured: Measured) -> None:
    """Their clocks run from the moment before the request is written until it is read, so they show
    a little more: how much is up to the machine."""
    _, prometheus, log = measured
    for metric, values in (
        ("phasescope_e2e_seconds", [one.e2e_s for one in log]),
        ("phasescope_ttft_seconds", [one.ttft_s for one in log]),
    ):
        for percent in PERCENTS:
            shown_s = quantile(prometheus, metric, percent)
            exact_s = percentile(values, percent)
            assert 0.8 * exact_s <= shown_s <= 1.01 * exact_s, (metric, percent)


def test_exemplars_lead_to_traces_that_were_received(
    measured: Measured, receiver: OtlpReceiver
) -> None:
    """From the slowest bucket, over a trace id, to the spans of the request."""
    server, prometheus, _ = measured
    facts = [server.facts_of(f"load-{number}") for number in range(REQUESTS)]
    slowest_s = {
        "phasescope_e2e_seconds": max(fact["e2e_ns"] for fact in facts) / 1e9,
        "phasescope_ttft_seconds": max(fact["ttft_ns"] for fact in facts) / 1e9,
        "phasescope_itl_seconds": max(f["sequences"][0]["itl_max_ns"] for f in facts) / 1e9,
    }
    for metric, value_s in slowest_s.items():
        lowest_s = max(bound_s for bound_s in LATENCY_BOUNDS_S if bound_s < value_s)
        found = eventually(
            lambda m=metric, low_s=lowest_s: [
                exemplar for exemplar in prometheus.exemplars(m) if float(exemplar["value"]) > low_s
            ],
            f"exemplars of {metric} above {lowest_s}",
            30,
        )
        trace_id = found[0]["labels"]["trace_id"]
        received = receiver.wait_for(
            lambda trees, t=trace_id: [tree for tree in trees if tree.trace_id == t],
            f"the trace of an exemplar of {metric}",
        )
        received[0].check()


def test_the_series_of_dashboards_exist(measured: Measured) -> None:
    """Ours, the convention's, vLLM's, the SLO's and the recorded rules'."""
    _, prometheus, _ = measured
    for promql, expected in (
        ("phasescope_running", 0.0),
        ("phasescope_ready", 1.0),
        ('sum(phasescope_slo_requests_total{slo_class="batch"})', REQUESTS),
        ("sum(vllm:request_success_total)", REQUESTS),
        ("vllm:num_requests_running", 0.0),
        ("sum(histogram_count(gen_ai_server_request_duration_seconds))", REQUESTS),
    ):
        assert prometheus.value(promql) == expected, promql
    budget = 'phasescope:slo_budget:ratio{slo_class="batch"}'
    found = eventually(lambda: prometheus.value(budget), "a recorded rule", 30)
    assert found == pytest.approx(0.01)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", str(CONFIG)),
        ("check", "rules", *map(str, RULES)),
        ("test", "rules", str(CONFIG.with_name("rules_test.yml"))),
        ("test", "rules", str(CONFIG.with_name("fleet_test.yml"))),
    ],
)
def test_promtool_accepts_what_we_ship(arguments: tuple[str, ...]) -> None:
    """Configuration and rules; and the alerts fire when they should."""
    required()
    answer = subprocess.run(["promtool", *arguments], capture_output=True, text=True)

    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_rules_name_only_metrics_that_exist(rules: Path) -> None:
    """A typing error in a rule is an alert that never comes."""
    import re

    from telemetry.metrics.catalog import all_metrics
    from telemetry.metrics.metric import Kind

    known = {metric.exposed for metric in all_metrics()}
    histograms = {metric.name for metric in all_metrics() if metric.kind is Kind.HISTOGRAM}
    named = set(re.findall(r"\bphasescope_[a-z0-9_]+", rules.read_text()))

    assert named
    assert named <= known | histograms | {f"{name}_bucket" for name in histograms}
