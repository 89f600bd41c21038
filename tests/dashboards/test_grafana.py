"""Boards are what the catalog says, and what Grafana's own types read."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.grafana import files, traces
from dashboards.grafana.boards import BOARDS
from dashboards.grafana.build import read_back
from dashboards.grafana.spec import Board, Needs, TraceStore
from telemetry.facts.host_records import HostSampled
from telemetry.host import gpu as gpu_sampler
from telemetry.host import gpu_device, gpu_gpm
from telemetry.metrics.catalog import all_metrics
from telemetry.metrics.metric import Kind
from telemetry.traces import span_attributes, spans
from tests.support.servers.prometheus_server import required

GRID_WIDTH = 24
# the window of a sample, a bit mask, and totals of which a rate is drawn
NOT_DRAWN = {
    "at_ns", "window_ns", "clock_events", "energy_j", "pcie_sent_bytes", "pcie_received_bytes",
}  # fmt: skip
TEXTS = files.texts()
PLAIN_RATE = re.compile(r"sum(?: by \([\w, ]+\))? \(rate\((\w+)\{[^}]*\}\[[^\]]+\]\)\)")

each = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)


def text(board: Board) -> str:
    return TEXTS[f"{board.name}.json"]


def panels(board: Board) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text(board))["panels"]
    return found


def exprs() -> list[str]:
    """Every query, with what Grafana would put in for its variables."""
    found = [query.expr for board in BOARDS for panel in board.panels for query in panel.queries]
    return [expr.replace("$__rate_interval", "1m").replace("$", "") for expr in found]


@each
def test_the_committed_board_is_not_stale(board: Board) -> None:
    """`python -m dashboards.grafana` writes it."""
    assert (files.BESIDE / f"{board.name}.json").read_text() == text(board)


def test_no_board_is_left_over() -> None:
    assert {path.name for path in files.BESIDE.glob("*.json")} == set(TEXTS)


@each
def test_the_types_of_the_sdk_read_a_board_without_losing_anything(board: Board) -> None:
    """A key that Grafana does not know would be gone."""
    assert json.loads(read_back(text(board))) == json.loads(text(board))


def test_every_metric_of_the_catalog_is_on_a_board() -> None:
    """Whoever adds one says where an operator sees it."""
    named = set(re.findall(r"\b(?:phasescope|gen_ai)_\w+", "\n".join(exprs())))
    catalog = {metric.exposed: metric for metric in all_metrics()}

    for metric in catalog.values():
        names = {metric.exposed}
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.exposed}_bucket"}
        assert names <= named, metric.name
    histograms = [name for name, metric in catalog.items() if metric.kind is Kind.HISTOGRAM]
    parts = {f"{name}{end}" for name in histograms for end in ("_bucket", "_sum", "_count")}
    assert named <= catalog.keys() | parts | {"gen_ai_operation_name", "gen_ai_request_model"}


@each
def test_panels_have_names_of_their_own_and_say_what_they_show(board: Board) -> None:
    titles = [panel["title"] for panel in panels(board)]
    ids = [panel["id"] for panel in panels(board)]

    assert len(titles) == len(set(titles))
    assert len(ids) == len(set(ids))
    for panel in board.panels:
        assert panel.about.endswith("."), panel.title
        assert panel.queries or panel.traces, panel.title


@each
def test_panels_do_not_overlap(board: Board) -> None:
    places = [panel["gridPos"] for panel in panels(board)]

    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
    assert all(place["x"] + place["w"] <= GRID_WIDTH for place in places)


@each
def test_every_query_obeys_the_variables(board: Board) -> None:
    """Of data source, instance and class; nothing is asked of a fixed data source."""
    variables = {one["name"] for one in json.loads(text(board))["templating"]["list"]}
    assert {"datasource", "traces", "instance", "slo_class"} <= variables

    for panel in panels(board):
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] in ("${datasource}", "${traces}"), panel["title"]
            if "phasescope_" in target.get("expr", ""):
                assert 'instance=~"$instance"' in target["expr"], panel["title"]
    asked = "".join(query.expr for panel in board.panels for query in panel.queries)
    assert set(re.findall(r"\$(\w+)", asked)) <= {"instance", "slo_class", "__rate_interval"}


def test_panels_of_the_machine_ask_for_quantities_that_are_measured() -> None:
    """By patterns of their names, which no scrape on a machine without a GPU could try."""
    patterns: dict[str, set[str]] = {"phasescope_host": set(), "phasescope_gpu": set()}
    for expr in exprs():
        for metric, pattern in re.findall(r'(phasescope_\w+)\{[^}]*quantity=~"([^"]+)"', expr):
            patterns[metric].add(pattern)
    host = {field for field in HostSampled.__struct_fields__ if field.endswith(("_ns", "_bytes"))}
    gpu = {*gpu_device._MEMORY, *gpu_device._REMAPPED, *gpu_device._SCALARS, *gpu_device._FIELDS}
    gpu |= {*gpu_gpm._METRICS, "gpu_busy_pct", "memory_controller_busy_pct"}
    gpu |= set(gpu_sampler._COUNTERS.values())

    for metric, known in (("phasescope_host", host), ("phasescope_gpu", gpu)):
        for pattern in patterns[metric]:
            assert any(re.fullmatch(pattern, quantity) for quantity in known), pattern
        shown = {q for q in known if any(re.fullmatch(p, q) for p in patterns[metric])}
        assert known - shown <= NOT_DRAWN


def test_promtool_reads_every_query(tmp_path: Path) -> None:
    required()
    rules = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(exprs())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}))
    answer = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", str(path)], capture_output=True, text=True
    )

    assert answer.returncode == 0, answer.stderr


@each
def test_seconds_of_a_second_are_a_share_and_what_is_counted_is_none(board: Board) -> None:
    """So no panel draws both: it has one unit."""
    units = {metric.exposed: metric.unit for metric in all_metrics()}
    for panel in board.panels:
        for query in panel.queries:
            rate = PLAIN_RATE.fullmatch(query.expr)
            if rate is not None:
                is_time = units[rate[1]] == "seconds"
                assert is_time == (panel.unit == "percentunit"), (panel.title, query.expr)


@pytest.mark.parametrize(("answering", "shown"), [(4, 1.0), (3, 0.75), (0, 0.0)])
def test_replicas_that_do_not_answer_are_not_ready(
    answering: int, shown: float, tmp_path: Path
) -> None:
    """One in four that is gone is red, and so are all of them, of which nothing is scraped."""
    required()
    (panel,) = [one for one in BOARDS[0].panels if one.title == "Replicas ready"]
    (query,) = panel.queries
    assert panel.warn_below == 1
    series = [
        {"series": f'up{{job="phasescope", instance="{n}"}}', "values": f"{int(n < answering)}x5"}
        for n in range(4)
    ]
    series += [
        {"series": f'phasescope_ready{{job="phasescope", instance="{n}"}}', "values": "1x5"}
        for n in range(answering)
    ]
    asked = {
        "expr": query.expr.replace("$instance", ".*"),
        "eval_time": "2m",
        "exp_samples": [{"labels": "{}", "value": shown}],
    }
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    path = tmp_path / "ready_test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    words = ["promtool", "test", "rules", str(path)]
    answer = subprocess.run(words, capture_output=True, text=True)

    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_latencies_lead_to_traces_by_exemplar_and_by_class() -> None:
    """A diamond is a request; a line leads to a search for its class."""
    overview, classes, *_ = BOARDS
    for board in (overview, classes):
        found = [panel for panel in panels(board) if "first token" in panel["title"].lower()]
        assert any(t.get("exemplar") for panel in found for t in panel["targets"])
        links = [
            link["url"]
            for panel in found
            for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
        ]
        assert any("${traces}" in link and "phasescope.slo_class" in link for link in links)


def test_searches_for_traces_use_words_that_spans_have() -> None:
    source = "".join(Path(module.__file__ or "").read_text() for module in (span_attributes, spans))

    for board in BOARDS:
        for panel in board.panels:
            if panel.traces is None:
                continue
            assert panel.needs is Needs.TRACE_STORE
            assert not panel.traces.span or f'"{panel.traces.span}"' in source
    assert all(f'"{name}"' in source for name in traces.OF_CLASS.tags)


def test_boards_for_tempo_ask_nothing_of_jaeger() -> None:
    for name, board in files.texts(TraceStore.TEMPO).items():
        assert "jaeger" not in board
        assert board != TEXTS[name]
        assert json.loads(read_back(board)) == json.loads(board)
