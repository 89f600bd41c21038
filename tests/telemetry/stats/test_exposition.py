"""Text, OpenMetrics, protobuf: the same numbers, read by independent parsers."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from telemetry.facts.reasons import EndReason
from telemetry.metrics import prometheus_protobuf
from telemetry.metrics.catalog import all_metrics
from telemetry.metrics.exemplars import Exemplar
from telemetry.metrics.metric import LATENCY_BOUNDS_S, Kind
from telemetry.metrics.negotiation import Format, choose
from telemetry.numbers.hdr import NATIVE_SCHEMA, distribution_of, exponential_buckets
from telemetry.requests.classes import workload_class
from telemetry.requests.phases import Measure, Measured
from tests.support.examples import examples
from tests.support.servers.prometheus_proto import families, native_buckets
from tests.support.worlds.facts import MS
from tests.support.worlds.metrics_world import UNIX_NS, MetricsWorld, engine_started, one_request

PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
SLOW, FAST = "a" * 32, "b" * 32


def lived() -> MetricsWorld:
    """A fast request of class voice and tenant blue, and a slow one of no class."""
    world = MetricsWorld(price_per_hour=1.0).feed([engine_started()])
    world.feed(one_request([10, 10], slo_class="voice", tenant="blue", trace_id=FAST))
    world.feed(one_request([10, 400], request_id="r2", seq_id=2, start_ms=100, trace_id=SLOW))
    world.feed(one_request([5], request_id="r3", seq_id=3, reason=EndReason.DISCONNECT))
    return world


def text(world: MetricsWorld, full: bool = False) -> dict[str, Any]:
    _, body = world.metrics.exposition("text/plain", full)
    return {f.name: f for f in text_string_to_metric_families(body.decode())}


def open_metrics(world: MetricsWorld) -> dict[str, Any]:
    content_type, body = world.metrics.exposition(OPEN_METRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    return {f.name: f for f in openmetrics.text_string_to_metric_families(body.decode())}


def protobuf(world: MetricsWorld) -> dict[str, Any]:
    content_type, body = world.metrics.exposition(PROTOBUF)
    assert "encoding=delimited" in content_type
    return families(body)


def one(family: Any, suffix: str = "", **labels: str) -> float:
    (value,) = [
        s.value
        for s in family.samples
        if s.name.endswith(suffix) and labels.items() <= s.labels.items()
    ]
    return float(value)


def test_all_three_formats_say_the_same() -> None:
    """Every sample of the text is in OpenMetrics and in the protobuf."""
    world = lived()
    in_text, in_open, in_proto = text(world), open_metrics(world), protobuf(world)
    assert in_text.keys() == in_open.keys()

    for name, family in in_text.items():
        pairs = {(s.name, tuple(s.labels.items())): s.value for s in family.samples}
        others = {(s.name, tuple(s.labels.items())): s.value for s in in_open[name].samples}
        assert pairs == others
        exposed = f"{name}_total" if family.type == "counter" else name
        metrics = in_proto[exposed].metric
        assert len(metrics) == len({k for _, k in _series(family)}), name
        for metric in metrics:
            labels = {pair.name: pair.value for pair in metric.label}
            if family.type == "histogram":
                exact = [s.value for s in family.samples if s.labels == labels]
                seen = metric.histogram
                assert sorted(exact) == sorted([seen.sample_count, seen.sample_sum])
            else:
                kind = metric.counter if family.type == "counter" else metric.gauge
                exact = [s.value for s in family.samples if s.labels == labels]
                assert exact == [kind.value], name


def _series(family: Any) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (family.name, tuple((k, v) for k, v in sorted(s.labels.items()) if k != "le"))
        for s in family.samples
    }


def test_every_metric_of_the_catalog_is_exposed_under_its_name_kind_and_labels() -> None:
    """And nothing that the catalog does not know, vLLM's names aside. What other owners add
    (`Metrics.more`, the flight recorder) is looked for on a real server, in test_e2e_metrics."""
    found = {name: family for name, family in text(lived()).items() if ":" not in name}
    catalog = {metric.name: metric for metric in all_metrics()}
    assert found.keys() <= catalog.keys()
    assert len(found) > 60

    for name, family in found.items():
        metric = catalog[name]
        assert (family.type, family.documentation) == (metric.kind.value, metric.help)
        for sample in family.samples:
            labels = set(sample.labels) - {"le"}
            assert labels <= set(metric.labels), name
        assert metric.help.endswith("."), name
        assert not metric.name.endswith("_total")
        if metric.kind is Kind.HISTOGRAM:
            assert metric.unit == "seconds"
            assert list(metric.bounds_s) == sorted(metric.bounds_s)


def test_histograms_are_cumulative_and_counted_by_class() -> None:
    """Bounds are counted to the microsecond where they are short."""
    family = text(lived())["phasescope_itl_seconds"]
    seen = [s for s in family.samples if s.labels.get("slo_class") == "chat" and "le" in s.labels]
    counts = {s.labels["le"]: s.value for s in seen}

    assert [s.value for s in seen] == sorted(s.value for s in seen)
    assert (counts["0.005"], counts["0.01"], counts["0.2"], counts["+Inf"]) == (1, 2, 2, 3)
    assert one(family, "_sum", slo_class="voice") == pytest.approx(0.02)


def test_full_exposition_splits_histograms_by_all_labels() -> None:
    family = text(lived(), full=True)["phasescope_ttft_seconds"]

    assert (
        one(family, "_count", tenant="blue", slo_class="voice", prompt="1-128", cache="cold") == 1
    )
    assert one(family, "_count", tenant="none") == 1


def test_gen_ai_histograms_follow_the_convention() -> None:
    """Failures are in the duration with their type, and in nothing else."""
    found = text(lived())
    duration = found["gen_ai_server_request_duration_seconds"]
    tpot = found["gen_ai_server_time_per_output_token_seconds"]

    assert one(duration, "_count", error_type="disconnect") == 1
    ended = [s for s in duration.samples if s.name.endswith("_count")]
    assert sum(s.value for s in ended) == 3
    labels = {"gen_ai_operation_name": "text_completion", "gen_ai_request_model": "model"}
    assert one(tpot, "_count", gen_ai_provider_name="phasescope", **labels) == 2
    assert one(tpot, "_sum") == pytest.approx((28 / 2 + 418 / 2) / 1000)  # (E2E - TTFT) / 2
    bounds = [
        s.labels["le"]
        for s in duration.samples
        if "error_type" not in s.labels and "le" in s.labels
    ]
    assert bounds[:3] + bounds[-2:] == ["0.01", "0.02", "0.04", "81.92", "+Inf"]


def test_vllms_names_are_exposed_when_switched_on() -> None:
    found = text(lived())

    assert one(found["vllm:request_success"], finished_reason="length") == 2
    assert one(found["vllm:request_success"], finished_reason="abort") == 1
    assert one(found["vllm:generation_tokens"]) == 8
    assert one(found["vllm:prompt_tokens"]) == 12
    assert one(found["vllm:inter_token_latency_seconds"], "_count") == 5


def test_the_sizes_of_the_cache_are_labels_once_an_engine_has_told_them() -> None:
    """As the inference extension of the gateway API reads them of vLLM."""
    told = text(MetricsWorld().feed([engine_started()]))["vllm:cache_config_info"]

    assert "vllm:cache_config_info" not in text(MetricsWorld())
    assert one(told, block_size="16", num_gpu_blocks="10") == 1


def test_labels_are_escaped_in_each_format() -> None:
    """A hostile tenant cannot break a line."""
    world = lived()
    hostile = 'a"b\\c\nd'
    stated = workload_class("chat", hostile, 4, 0)
    world.histograms.on_measured(Measured(Measure.ITL, MS, 0, stated))
    bodies = [world.metrics.exposition(accept, True)[1] for accept in ("", OPEN_METRICS, PROTOBUF)]
    as_text = text_string_to_metric_families(bodies[0].decode())
    as_open = openmetrics.text_string_to_metric_families(bodies[1].decode())
    for parsed in (as_text, as_open):
        labels = {s.labels.get("tenant") for family in parsed for s in family.samples}
        assert hostile in labels
    itl = families(bodies[2])["phasescope_itl_seconds"]
    assert hostile in {pair.value for metric in itl.metric for pair in metric.label}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_text() -> None:
    """Prometheus' own linter has nothing to say of our names; vLLM's have colons."""
    _, body = lived().metrics.exposition("")
    lines = [line for line in body.decode().splitlines() if "vllm:" not in line]
    answer = subprocess.run(
        ["promtool", "check", "metrics"],
        input="\n".join([*lines, ""]),
        text=True,
        capture_output=True,
    )

    assert answer.returncode == 0, answer.stdout + answer.stderr


# Exemplars


def test_every_bucket_with_a_kept_value_has_an_exemplar_that_lies_in_it() -> None:
    """Stalled tokens among them, as of the end of their request."""
    family = open_metrics(lived())["phasescope_itl_seconds"]
    found: dict[tuple[str, str], Any] = {}
    lower = 0.0
    for sample in family.samples:
        if "le" not in sample.labels:
            continue
        lower = 0.0 if float(sample.labels["le"]) == LATENCY_BOUNDS_S[0] else lower
        if sample.exemplar is not None:
            assert lower < sample.exemplar.value <= float(sample.labels["le"])
            found[sample.labels["slo_class"], sample.labels["le"]] = sample.exemplar
        lower = float(sample.labels["le"])

    stalled = found["chat", "0.5"]
    assert (stalled.labels, stalled.value) == ({"trace_id": SLOW}, 0.4)
    assert float(stalled.timestamp) == pytest.approx(UNIX_NS / 1e9 + 0.540, abs=0.001)
    assert found["voice", "0.01"].labels == {"trace_id": FAST}


def test_a_trace_that_was_not_kept_is_not_an_exemplar() -> None:
    world = MetricsWorld(kept=lambda timeline: timeline.accepted.trace_id == SLOW)
    world.feed(one_request([10], trace_id=FAST))
    assert "trace_id" not in world.metrics.exposition(OPEN_METRICS)[1].decode()

    world.feed(one_request([10], request_id="r2", seq_id=2, trace_id=SLOW))
    text = world.metrics.exposition(OPEN_METRICS)[1].decode()
    assert SLOW in text
    assert FAST not in text


def exemplar(value_s: float, at_s: float) -> Exemplar:
    return Exemplar(f"{value_s}@{at_s}", 1, round(value_s * 1e9), round(at_s * 1e9))


def test_an_older_prometheus_is_given_the_slowest_exemplar_of_the_last_minute() -> None:
    """It takes one a scrape, from the lowest bucket that has one."""
    shown = {
        3: exemplar(0.1, 1000.0), 5: exemplar(0.3, 998.0), 7: exemplar(0.9, 941.0),
        9: exemplar(9.0, 939.0),
    }  # fmt: skip

    assert prometheus_protobuf._slowest(shown) == {7: shown[7]}
    assert prometheus_protobuf._slowest({}) == {}


def test_the_list_of_exemplars_has_them_all_in_order_of_time() -> None:
    itl = protobuf(lived())["phasescope_itl_seconds"]
    (chat,) = [m.histogram for m in itl.metric if ("slo_class", "chat") in _pairs(m)]
    stamps = [e.timestamp.seconds * 10**9 + e.timestamp.nanos for e in chat.exemplars]

    assert stamps == sorted(stamps)
    assert {e.label[0].value for e in chat.exemplars} >= {SLOW}
    assert max(e.value for e in chat.exemplars) == 0.4


def _pairs(metric: Any) -> set[tuple[str, str]]:
    return {(pair.name, pair.value) for pair in metric.label}


# Native histograms


@examples(33, 100)
@given(values=st.lists(st.integers(1_000_000, 3600 * 10**9), min_size=1, max_size=200))
def test_native_buckets_hold_each_value_within_one_percent(values: list[int]) -> None:
    """The n-th value from below lies in the bucket that holds the n-th count."""
    places, counts = exponential_buckets(distribution_of(values), NATIVE_SCHEMA)
    base = 2 ** (2**-NATIVE_SCHEMA)
    assert counts.sum() == len(values)
    assert all(a < b for a, b in itertools.pairwise(places))

    ordered = iter(sorted(values))
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            value_s = next(ordered) / 1e9
            assert base ** (place - 1) / value_s < 1.0011
            assert value_s / base**place < 1.0011
            assert base**place / value_s < 1.01


@examples(33, 100)
@given(values=st.lists(st.integers(0, 3600 * 10**9), max_size=200))
def test_native_buckets_survive_the_wire(values: list[int]) -> None:
    """Spans and deltas, as a reader that is not ours adds them up."""
    world = MetricsWorld()
    for value in values:
        world.histograms.on_measured(Measured(Measure.E2E, value, 0, workload_class("", "", 4, 0)))
    family = protobuf(world)["phasescope_e2e_seconds"]
    places, counts = exponential_buckets(distribution_of(values), NATIVE_SCHEMA)
    if not values:
        assert not family.metric
        return
    (metric,) = family.metric

    assert metric.histogram.schema == NATIVE_SCHEMA
    assert metric.histogram.zero_threshold > 0
    assert native_buckets(metric.histogram) == dict(
        zip(places.tolist(), counts.tolist(), strict=True)
    )
    assert metric.histogram.bucket[-1].upper_bound == math.inf
    assert metric.histogram.bucket[-1].cumulative_count == len(values)


# Which format


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", Format.TEXT),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format.TEXT),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format.OPEN_METRICS),
        (f"{OPEN_METRICS},application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format.OPEN_METRICS),
        (f"{PROTOBUF},{OPEN_METRICS};q=0.8,text/plain;version=0.0.4;q=0.5", Format.PROTOBUF),
        (f"{OPEN_METRICS},text/plain", Format.OPEN_METRICS),
        (f"text/plain,{OPEN_METRICS}", Format.OPEN_METRICS),
        (f"{PROTOBUF};q=0.2,{OPEN_METRICS};q=0.8,text/plain;q=0.5", Format.OPEN_METRICS),
        (f"{OPEN_METRICS};q=0,text/plain;q=0.1", Format.TEXT),
        (f"{OPEN_METRICS};q=nonsense,text/plain;q=0.1", Format.TEXT),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", Format.TEXT),
        ("application/vnd.google.protobuf;proto=other;encoding=delimited", Format.TEXT),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
         Format.TEXT),
        ('APPLICATION/OpenMetrics-Text; Version="1.0.0"', Format.OPEN_METRICS),
    ],
)  # fmt: skip
def test_the_accept_header_decides(accept: str, form: Format) -> None:
    """Quality first, then the format that says most."""
    assert choose(accept) is form
