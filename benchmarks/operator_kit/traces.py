"""Traces of a loaded server, end to end: through a collector, and in Arize Phoenix.

Four runs of a server with a tiny model whose streams make each other late:

- over gRPC, then over HTTP, to a collector (rotel) that passes the spans on to a strict receiver:
  every exported span arrives, every trace is whole, every link has its target, and Jaeger's rules
  find nothing to warn about;
- over gRPC, then over HTTP, to Phoenix, whose API is then asked for the spans: roots, phases,
  attributes, stalls with their culprits.

    .venv/bin/python -m benchmarks.operator_kit.traces [--only collector|phoenix] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contract.client import ask, call, completion
from benchmarks.contract.common import Figure, Server, above, equal, say
from benchmarks.contract.spans import receiver_module
from benchmarks.machine import machine
from benchmarks.operator_kit.collector import Collector
from benchmarks.operator_kit.phoenix import PROJECT, VERSION, Phoenix
from benchmarks.paired import until_delivered
from lab.load.processes import free_ports

RESULTS = Path(__file__).parents[1] / "results" / "traces.json"
WIRES = ("grpc", "http/protobuf")
PHASES = (
    "gateway.accept", "gateway.parse", "tokenize", "queue", "prefill", "decode", "detokenize",
    "deliver",
)  # fmt: skip
STREAMS, ROUNDS, LATE_PROMPTS = 8, 2, 4
ITL_TARGET_MS = 4  # a step with a long prompt takes more
# one step takes a whole prompt, whatever the target is
FLAGS = ("--model", "dummy:tiny", "--no-prefix-cache", "--max-batched-tokens", "1024")


@dataclass(frozen=True)
class Sent:
    """What the server says that it sent."""

    requests: frozenset[str]
    spans: int
    dropped: int


async def loaded(endpoint: str, wire: str, slo_file: str) -> Sent:
    """A server under load whose spans go there."""
    where = ("--otlp-endpoint", endpoint, "--otlp-protocol", wire, "--otlp-metrics", "off")
    async with Server(*FLAGS, *where, "--slo-file", slo_file) as server:
        ids = await _load(server)
        await server.until_empty()
        await asyncio.sleep(0.3)  # the last request is folded
        await until_delivered(server)
        books = (await call(server.port, "GET", "/debug/tracing"))[1]
    dropped = sum(books["spans_dropped"].values())
    return Sent(frozenset(ids), books["spans_exported"], dropped)


async def _load(server: Server) -> list[str]:
    """Streams that decode, and long prompts that come in between."""

    async def stream(number: int) -> list[str]:
        found = []
        for turn in range(ROUNDS):
            prompt = _prompt(f"short.{number}.{turn}", 24)
            found.append((await ask(server.port, completion(prompt, 96))).request_id)
        return found

    async def late_prompt(number: int) -> list[str]:
        await asyncio.sleep(0.15 * (number + 1))
        prompt = _prompt(f"long.{number}", 800)
        return [(await ask(server.port, completion(prompt, 4))).request_id]

    streams = [stream(number) for number in range(STREAMS)]
    prompts = [late_prompt(number) for number in range(LATE_PROMPTS)]
    return [one for found in await asyncio.gather(*streams, *prompts) for one in found]


def _prompt(seed: str, tokens: int) -> list[int]:
    """Tokens of the tiny model, others for every seed."""
    draw = random.Random(seed)
    return [draw.randrange(10, 500) for _ in range(tokens)]


def through_a_collector(wire: str, slo_file: str) -> list[Figure]:
    """What a strict receiver behind it has."""
    rules = importlib.import_module("tests.support.servers.jaeger_rules")
    with receiver_module().OtlpReceiver("grpc") as receiver, Collector(receiver.endpoint) as agent:
        sent = asyncio.run(loaded(agent.endpoint[wire], wire, slo_file))
        deadline_s = time.monotonic() + 20
        while receiver.spans_taken < sent.spans and time.monotonic() < deadline_s:
            time.sleep(0.1)
        trees = receiver.trees()
    traces: dict[bytes, list[Any]] = defaultdict(list)
    for tree in trees:
        traces[tree.root.trace_id] += [(span, tree.resource) for span in tree.spans]
    spans = [one for trace in traces.values() for one in trace]
    ids = {(span.trace_id, span.span_id) for span, _ in spans}
    links = [link for span, _ in spans for link in span.links]
    about = f"{wire}, collector"
    return [
        *_books(about, sent, len(spans)),
        equal(f"{about}: requests without a whole trace", _broken(trees, sent), 0),
        above(f"{about}: links", len(links), 0),
        equal(
            f"{about}: links to no span",
            sum((link.trace_id, link.span_id) not in ids for link in links),
            0,
        ),
        equal(
            f"{about}: warnings by Jaeger's rules",
            sum(len(rules.warnings(trace)) for trace in traces.values()),
            0,
        ),
    ]


def _books(about: str, sent: Sent, arrived: int) -> list[Figure]:
    return [
        equal(f"{about}: spans lost by the server", sent.dropped, 0),
        equal(f"{about}: spans exported and not arrived", sent.spans - arrived, 0),
    ]


def _broken(trees: list[Any], sent: Sent) -> int:
    """Requests that have not exactly one tree, with all phases, sound in ids, times and parents."""
    found = defaultdict(list)
    for tree in trees:
        found[tree.attribute("gen_ai.request.id")].append(tree)
    broken = 0
    for request_id in sent.requests:
        try:
            (tree,) = found[request_id]
            tree.check()
            assert [span.name for span in tree.children(tree.root)] == list(PHASES)
        except (ValueError, AssertionError) as error:
            say(f"{request_id}: {error}")
            broken += 1
    return broken


def in_phoenix(phoenix: Phoenix, wire: str, slo_file: str) -> list[Figure]:
    """What its API answers."""
    project = f"phasescope-{wire.partition('/')[0]}"
    with _environment(OTEL_RESOURCE_ATTRIBUTES=f"{PROJECT}={project}"):
        sent = asyncio.run(loaded(phoenix.endpoint[wire], wire, slo_file))
    spans = phoenix.wait_for(project, sent.spans)
    children: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for span in spans:
        children[span["parent_id"] or ""].append(span)
    roots = {root["attributes"].get("gen_ai.request.id"): root for root in children[""]}
    traces = {span["context"]["trace_id"] for span in spans}
    stalls = [span for span in spans if span["name"] == "stall"]
    culprits = [span["attributes"].get("phasescope.culprit.trace_id") for span in stalls]
    named = [culprit for culprit in culprits if culprit is not None]
    about = f"{wire}, Phoenix"
    whole = [
        one
        for one in sent.requests
        if one in roots and _is_whole(roots[one], children[roots[one]["context"]["span_id"]])
    ]
    return [
        *_books(about, sent, len(spans)),
        equal(f"{about}: requests without a whole trace", len(sent.requests) - len(whole), 0),
        above(f"{about}: stalls that name a culprit", len(named), 0),
        equal(f"{about}: culprits without a trace", len(set(named) - traces), 0),
    ]


def _is_whole(root: Mapping[str, Any], phases: list[Mapping[str, Any]]) -> bool:
    """Its name, its attributes, and its phases."""
    attributes = root["attributes"]
    output = attributes.get("gen_ai.usage.output_tokens")
    ok = root["name"].startswith("text_completion ") and output in (96, 4)
    ok &= attributes.get("phasescope.outcome") == "finished"
    return ok and sorted(span["name"] for span in phases) == sorted(PHASES)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


@contextlib.contextmanager
def _targets() -> Iterator[str]:
    """A file of SLO classes under which a step with a long prompt is a stall."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        classes = {"chat": {"ttft_ms": 3_600_000, "itl_ms": ITL_TARGET_MS}}
        json.dump({"default": "chat", "classes": classes}, file)
        file.flush()
        yield file.name


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["collector", "phoenix"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    figures: list[Figure] = []
    with _targets() as slo_file:
        if args.only != "phoenix":
            for wire in WIRES:
                figures += through_a_collector(wire, slo_file)
        if args.only != "collector":
            http, grpc = free_ports(2)
            with Phoenix((http, grpc)) as phoenix:
                for wire in WIRES:
                    figures += in_phoenix(phoenix, wire, slo_file)
    for figure in figures:
        say(figure.line())
    if args.only is None:
        about = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "machine": machine(),
            "phoenix": VERSION,
            "figures": [asdict(figure) for figure in figures],
        }
        args.out.write_text(json.dumps(about, indent=1) + "\n")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
