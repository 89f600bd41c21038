"""Every query of every Grafana board, asked of a real Prometheus that scraped a real server.

A server is put under a load with something of everything: classes, tenants, long prompts, schemas,
drafts, cancellations, slow readers, a queue. Two Prometheuses scrape it, one with native histograms
and one with classic buckets, as either may be what Grafana asks. Each query of each panel must have
data in both (what was never above zero is named), and each panel with exemplars must have one whose
trace was received. What searches for traces ask for (service, span, attribute) must be in what was
received. Panels that need what is not here (a GPU, a trace store) are named.

    .venv/bin/python -m benchmarks.operator_kit.grafana [--seconds 90]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.operator_kit.load import everything
from benchmarks.starter import serving
from dashboards.grafana.boards import BOARDS
from dashboards.grafana.files import BESIDE
from dashboards.grafana.spec import Needs
from dashboards.grafana.traces import OF_CLASS, SERVICE
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.prometheus_server import Prometheus

RESULTS = Path(__file__).parents[1] / "results" / "operator_grafana.json"
STEP_S = 5
SCRAPE_S = 5  # of a loaded server, on a machine that the load shares
HERE = {"$__rate_interval": f"{4 * SCRAPE_S}s", "$instance": ".*", "$slo_class": ".*"}
"""What Grafana would put in for these scrapes: everything, over four of them."""

FLAGS = (
    "--model", "dummy:tiny", "--executor", "native", "--threads", "1", "--max-num-seqs", "8",
    "--kv-memory", "1MiB", "--kv-offload", "4MiB", "--speculative-tokens", "4",
    "--stream-buffer", "16", "--price-per-hour", "1", "--peak-gb-per-s", "10",
    "--peak-gflop-per-s", "100", "--vllm-metrics",
)  # fmt: skip
LACKING = frozenset(
    {Needs.GPU, Needs.RANKS, Needs.COUNTERS, Needs.TRACE_STORE, Needs.ATTACHED, Needs.GATEWAYS}
)


@dataclass(frozen=True)
class Asked:
    """One query of a panel as it is committed."""

    panel: str
    expr: str
    is_instant: bool
    wants_exemplars: bool
    needs: Needs


@dataclass
class Found:
    """What came of all queries, by kind of histogram."""

    answered: dict[str, int] = field(default_factory=dict)
    zero: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    exemplars: int = 0
    not_here: dict[str, list[str]] = field(default_factory=dict)


def queries() -> Iterator[Asked]:
    """The queries of the committed boards."""
    for board in BOARDS:
        needs = {panel.title: panel.needs for panel in board.panels}
        for panel in json.loads((BESIDE / f"{board.name}.json").read_text())["panels"]:
            for target in panel.get("targets", ()):
                expr = target.get("expr", "")
                for name, value in HERE.items():
                    expr = expr.replace(name, value)
                yield Asked(
                    panel=f"{board.title}: {panel['title']}",
                    expr=expr,
                    is_instant=bool(target.get("instant")),
                    wants_exemplars=bool(target.get("exemplar")),
                    needs=needs[panel["title"]],
                )


def highest(prometheus: Prometheus, asked: Asked, begin_s: float) -> float | None:
    """The highest value that a panel would draw, NaN aside; None if it would draw nothing."""
    if asked.is_instant:
        values = [one["value"][1] for one in prometheus.query(asked.expr)]
    else:
        series = prometheus.query_range(asked.expr, begin_s, time.time(), STEP_S)
        values = [value for one in series for _, value in one.get("values", ())]
        values += [h["count"] for one in series for _, h in one.get("histograms", ())]
    return max((value for value in map(float, values) if math.isfinite(value)), default=None)


def ask_all(kind: str, prometheus: Prometheus, begin_s: float, ids: set[str]) -> Found:
    """Every query; `ids` are the traces that were received."""
    found = Found()
    for asked in queries():
        if asked.needs in LACKING and not asked.expr:
            found.not_here.setdefault(asked.needs.value, []).append(asked.panel)
            continue
        try:
            value = highest(prometheus, asked, begin_s)
        except AssertionError as error:
            found.failed.append(f"{kind}: {asked.panel}: {error}")
            continue
        if value is not None:
            found.answered[asked.panel] = found.answered.get(asked.panel, 0) + 1
            if value == 0:
                found.zero.append(f"{asked.panel}: {asked.expr}")
        elif asked.needs in LACKING:
            found.not_here.setdefault(asked.needs.value, []).append(asked.panel)
        else:
            found.empty.append(f"{kind}: {asked.panel}: {asked.expr}")
        if asked.wants_exemplars:
            traces = {e["labels"]["trace_id"] for e in prometheus.exemplars(asked.expr)}
            found.exemplars += len(traces & ids)
            if not traces & ids:
                found.empty.append(f"{kind}: {asked.panel}: no exemplar of a received trace")
    return found


def searches_find(trees: list[Any]) -> list[str]:
    """What searches of the boards would not find in these traces."""
    searches = [panel.traces for board in BOARDS for panel in board.panels if panel.traces]
    names = {name for tree in trees for name in tree.names}
    lacking = [search.span for search in searches if search.span and search.span not in names]
    lacking += [tag for tag in OF_CLASS.tags if not any(tree.attribute(tag) for tree in trees)]
    services = {tree.resource["service.name"] for tree in trees}
    return lacking if services == {SERVICE} else [*lacking, f"services are {services}"]


def variables_have_values(prometheus: Prometheus) -> bool:
    """The instance and the classes that the boards let one choose from."""
    instances = prometheus.query("count by (instance) (phasescope_ready)")
    classes = prometheus.query("count by (slo_class) (phasescope_slo_objective_ratio)")
    return len(instances) == 1 and len(classes) >= 3


def measure(seconds: float) -> tuple[dict[str, Found], float, int]:
    """What was found of each kind of histogram, how long the load was, and how many requests."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver("grpc"))
        dumps = stack.enter_context(tempfile.TemporaryDirectory(prefix="phasescope-dumps-"))
        more = ("--otlp-endpoint", receiver.endpoint, "--dump-dir", dumps)
        more += ("--report-dir", f"{dumps}/incidents")
        server = stack.enter_context(serving(*FLAGS, *more))
        target = f"127.0.0.1:{server.port}"
        scrapers = {
            "native": stack.enter_context(Prometheus(target, every_s=SCRAPE_S)),
            "classic": stack.enter_context(Prometheus(target, native=False, every_s=SCRAPE_S)),
        }
        begin_s = time.time()
        requests = asyncio.run(everything(server.port, seconds))
        time.sleep(2 * SCRAPE_S)  # the last exports and scrapes
        took_s = time.time() - begin_s
        trees = receiver.trees()
        ids = {tree.trace_id for tree in trees}
        lacking = searches_find(trees)
        assert all(map(variables_have_values, scrapers.values())), "no values for the variables"
        found = {
            kind: ask_all(kind, prometheus, begin_s, ids) for kind, prometheus in scrapers.items()
        }
    found["native"].empty += [f"no trace has what a search wants: {one}" for one in lacking]
    return found, took_s, requests


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90, help="length of the load")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("prometheus is not installed: run `make prometheus`", file=sys.stderr)
        return 1
    found, took_s, requests = measure(args.seconds)
    wrong = [line for one in found.values() for line in (*one.failed, *one.empty)]
    not_here = found["native"].not_here
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": machine(),
        "server": list(FLAGS),
        "load_s": round(took_s, 1),
        "requests": requests,
        "panels": sum(len(board.panels) for board in BOARDS),
        "panels_with_data": {kind: len(one.answered) for kind, one in found.items()},
        "queries_with_data": {kind: sum(one.answered.values()) for kind, one in found.items()},
        "exemplars_of_received_traces": {kind: one.exemplars for kind, one in found.items()},
        "always_zero_in_this_load": found["native"].zero,
        "not_checkable_here": {need: sorted(set(names)) for need, names in not_here.items()},
        "wrong": wrong,
    }
    args.out.write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps({k: v for k, v in about.items() if k not in ("machine", "server")}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
