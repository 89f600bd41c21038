"""A real server's metrics: timings in responses, histograms, SLO, formats, idle gauges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.metrics.catalog import all_metrics, attach, fleet, gateway, kv_transfer
from telemetry.metrics.metric import Metric
from telemetry.requests.phases import Measure
from telemetry.stats.histogram_report import merge
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually, spawn, sse_events

SLO = "[classes.live]\nttft_ms = 60000\nitl_ms = 60000\n[classes.never]\nttft_ms = 0.001\n"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("slo") / "slo.toml"
    path.write_text(SLO)
    flags = ("--model", "dummy:tiny", "--slo-file", str(path), "--price-per-hour", "3.6")
    with Server(*flags) as running:
        yield running


def ask(server: Server, **body: Any) -> httpx.Response:
    headers = {"x-slo-class": body.pop("slo_class", "live"), "x-tenant": "blue"}
    body = {"prompt": [5, 6, 7], "max_tokens": 6, "ignore_eos": True, **body}
    answer = server.client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def ms(value_ns: int) -> float:
    return round(value_ns / 1e6, 3)


def phases_ms(facts: dict[str, Any]) -> dict[str, float]:
    return {p["name"]: ms(p["end_ns"] - p["start_ns"]) for p in facts["phases"]}


def test_a_response_has_its_timings_when_requested(tiny: Server) -> None:
    """The same numbers as the facts of the request, in the body and in a header."""
    answer = ask(tiny, include_metrics=True)
    metrics = answer.json()["metrics"]
    facts = tiny.facts_of(answer.headers["x-request-id"])
    phases = phases_ms(facts)

    assert metrics["queue_time_ms"] == phases["queue"]
    assert metrics["prefill_time_ms"] == phases["prefill"]
    assert metrics["generation_time_ms"] == phases["decode"]
    assert metrics["tokenize_time_ms"] == phases["tokenize"]
    assert metrics["time_to_first_token_ms"] == ms(facts["ttft_ns"])
    assert metrics["mean_itl_ms"] == ms(facts["tpot_ns"])
    assert metrics["max_itl_ms"] == ms(facts["sequences"][0]["itl_max_ns"])
    assert metrics["tokens_per_second"] == pytest.approx(1e9 / facts["tpot_ns"], abs=0.001)
    assert 0 < metrics["total_time_ms"] <= ms(facts["e2e_ns"])
    header = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    assert float(header["queue"]) == metrics["queue_time_ms"]
    assert float(header["prefill"]) == metrics["prefill_time_ms"]
    assert float(header["decode"]) == metrics["generation_time_ms"]
    assert float(header["total"]) == metrics["total_time_ms"]


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_its_timings_in_its_last_chunk(tiny: Server, usage: bool) -> None:
    """With the usage if that was asked for too, right before the end mark."""
    body: dict[str, Any] = {"include_metrics": True, "stream": True}
    if usage:
        body["stream_options"] = {"include_usage": True}
    answer = ask(tiny, **body)
    *_, last, done = sse_events(answer.text.splitlines())
    facts = tiny.facts_of(answer.headers["x-request-id"])

    assert done == "[DONE]"
    assert last["choices"] == []
    assert ("usage" in last) is usage
    assert last["metrics"]["time_to_first_token_ms"] == ms(facts["ttft_ns"])
    assert last["metrics"]["queue_time_ms"] == phases_ms(facts)["queue"]


def test_a_response_has_no_timings_by_default(tiny: Server) -> None:
    whole, stream = ask(tiny), ask(tiny, stream=True)
    chunks = [e for e in sse_events(stream.text.splitlines()) if e != "[DONE]"]

    assert "metrics" not in whole.json()
    assert "server-timing" not in whole.headers
    assert all("metrics" not in chunk and chunk["choices"] for chunk in chunks)


def test_a_wrong_include_metrics_is_refused(tiny: Server) -> None:
    body = {"prompt": [5], "include_metrics": "yes"}
    answer = tiny.client.post("/v1/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "include_metrics"


def test_histograms_of_two_servers_merge_to_all_requests(tiny: Server) -> None:
    """Over HTTP, as another process would."""
    for _ in range(3):
        ask(tiny)
    with Server("--model", "dummy:tiny") as other:
        ask(other, max_tokens=2)
        eventually(other.is_empty, "an empty engine")
        eventually(tiny.is_empty, "an empty engine")
        bodies = [s.client.get("/debug/histograms").content for s in (tiny, other)]
    counts = [
        sum(e["count"] for e in json.loads(body)["histograms"] if e["measure"] == "e2e")
        for body in bodies
    ]
    found = merge(bodies)
    e2e = {cell: values for (measure, cell), values in found.items() if measure is Measure.E2E}

    assert counts[0] >= 3
    assert counts[1] == 1
    assert sum(values.count for values in e2e.values()) == sum(counts)
    assert {cell.slo_class for cell in e2e} >= {"live", "chat"}
    assert {cell.tenant for cell in e2e} == {"blue"}
    refused = tiny.client.get("/debug/histograms?window=2h")
    assert refused.status_code == 400
    assert "5m" in refused.json()["error"]["message"]


def test_the_slo_report_counts_good_and_late_requests_and_their_cost(tiny: Server) -> None:
    """Classes come from the file; an unknown one is the first of them."""

    def report() -> dict[str, Any]:
        found: dict[str, Any] = tiny.client.get("/debug/slo").json()
        return found

    def of(name: str, verdict: str) -> int:
        (found,) = [c for c in report()["classes"] if c["name"] == name]
        count: int = found["requests"][verdict]
        return count

    good, late = of("live", "good"), of("never", "late_first_token")
    unknown = report()["unknown_class_requests"]
    ask(tiny, slo_class="live")
    ask(tiny, slo_class="never")
    ask(tiny, slo_class="no-such-class")
    eventually(lambda: of("live", "good") == good + 2, "two good requests")
    eventually(lambda: of("never", "late_first_token") == late + 1, "a late one")

    found = report()
    assert found["unknown_class_requests"] == unknown + 1
    assert found["default_class"] == "live"
    (never,) = [c for c in found["classes"] if c["name"] == "never"]
    assert never["windows"][0]["burn"] == pytest.approx(100)
    assert found["cost"][0]["per_million_tokens"] > 0
    assert tiny.snapshot()["slo"]["classes"][0]["name"] == "live"


def test_metrics_come_in_the_format_that_is_asked_for_with_idle_gauges_at_zero(
    tiny: Server,
) -> None:
    """Nothing runs, and no step follows the last one: the scrape says so all the same."""
    ask(tiny)
    eventually(tiny.is_empty, "an empty engine")
    text = tiny.client.get("/metrics", headers={"accept": "text/plain"})
    openm = tiny.client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    full = tiny.client.get("/metrics?classes=full", headers={"accept": "text/plain"})

    assert "version=0.0.4" in text.headers["content-type"]
    for name in ("running", "waiting", "kv_blocks_used"):
        assert f"\nphasescope_{name} 0\n" in text.text
    assert "vllm:" not in text.text
    assert openm.headers["content-type"].startswith("application/openmetrics-text")
    assert openm.text.endswith("# EOF\n")
    assert 'tenant="blue"' in full.text
    assert 'tenant="blue"' not in text.text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--slo-file", "/no/such/file"), "--slo-file /no/such/file: No such file or directory"),
        (("--price-per-hour", "0"), "--price-per-hour must be positive"),
    ],
)
def test_wrong_flags_are_one_line_of_error(flags: tuple[str, ...], says: str) -> None:
    import subprocess

    process = spawn("serve", "--model", "dummy:tiny", *flags, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 2
    assert errors.decode().count("\n") == 1
    assert says in errors.decode()


def test_a_real_server_exposes_every_metric_of_the_catalog_and_no_other() -> None:
    """Families without a measured value have no sample, but a name. Those of a sidecar are in
    `tests/attach/test_sidecar.py`, those of several gateway processes in
    `tests/gateway/processes/test_e2e_gateways.py`, those of a fleet in
    `tests/fleet/test_shifted_clock.py` and `tests/fleet/test_kv_metrics.py`."""
    of_a_sidecar = {one.name for one in vars(attach).values() if isinstance(one, Metric)}
    of_a_fleet = {
        one.name
        for module in (fleet, kv_transfer)
        for one in vars(module).values()
        if isinstance(one, Metric)
    }
    of_several_gateways = {
        gateway.GATEWAY_PROCESSES.name,
        gateway.GATEWAY_PROCESSES_ENDED.name,
        gateway.FACTS_BEFORE_CAUSES.name,
    }
    catalog = {metric.name for metric in all_metrics()}
    catalog -= of_a_sidecar | of_several_gateways | of_a_fleet
    with (
        OtlpReceiver() as receiver,
        Server(
            "--model", "dummy:tiny", "--otlp-endpoint", receiver.endpoint, "--price-per-hour", "1"
        ) as server,
    ):
        ask(server)

        def names() -> set[str]:
            text = server.client.get("/metrics").text
            return {family.name for family in text_string_to_metric_families(text)}

        eventually(lambda: names() >= catalog, "every metric")
        assert names() == catalog
