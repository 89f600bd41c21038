"""The tables of docs/results/default_settings.md, from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from benchmarks.default_settings.acceptance import (
    FIXED,
    Results,
    figures,
    tenant_ratio,
)
from benchmarks.default_settings.loads import CLOSED
from benchmarks.default_settings.plan import DEFAULT, OLD, ONE_CLASS, VOICE_CAPACITY
from benchmarks.samples import known_quantile, least_count

_PEERS = {"vllm": "vLLM", "openvino": "OpenVINO GenAI"}


def label(server: str) -> str:
    """The name of a server as people say it."""
    if server.startswith(FIXED):
        return f"fixed, {server.removeprefix(FIXED)}"
    ours = {DEFAULT: "**default**", OLD: "old default", ONE_CLASS: "default, told no classes"}
    name, _, budget = server.partition("@")
    peer = _PEERS.get(name, name) + (f", {budget}" if budget else "")
    return ours.get(server, peer)


def spread(values: Iterable[float], digits: int = 0) -> str:
    """The median, with the least and the most of the rounds; a digit more below ten."""
    known = sorted(values)
    if not known:
        return "-"
    digits = max(digits, int(known[-1] < 10))
    low, middle, high = (f"{one:,.{digits}f}" for one in (known[0], median(known), known[-1]))
    return f"{middle} ({low} to {high})"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(data: dict[str, Any]) -> str:
    about = data["about"]["machine"]
    rounds: dict[str, int] = {}
    for cell in data["cells"]:
        rounds[cell["load"]] = max(rounds.get(cell["load"], 0), cell["repetition"])
    by_count = {count: [one for one in rounds if rounds[one] == count] for count in rounds.values()}
    counted = "; ".join(
        f"{count}: {', '.join(sorted(names))}" for count, names in sorted(by_count.items())
    )
    days = sorted({cell["at"][:10] for cell in data["cells"]})
    instructions = ", ".join(about["instructions"])
    gpu = f"{one}, with " if (one := data["about"].get("gpu")) else ""
    return (
        f"- Machine: {gpu}{about['cores']} cores of an {about['cpu']} ({instructions}), "
        f"{about['memory_gib']} GiB.\n"
        f"- Measured on {' to '.join(dict.fromkeys((days[0], days[-1])))}; medians of "
        "interleaved rounds, with the least and the most.\n"
        f"- Rounds: {counted}."
    )


def mix(data: dict[str, Any]) -> str:
    results = Results(data)
    rows = [
        [
            label(server),
            spread(results.values("mix", server, "tokens_per_s")),
            spread(results.values("mix", server, "itl_p50_ms")),
            spread(results.values("mix", server, "itl_p99_ms")),
            spread(results.values("mix", server, "ttft_p50_ms")),
        ]
        for server in results.servers("mix")
    ]
    alone = spread(results.values("alone", DEFAULT, "itl_p50_ms"), 1)
    header = ["server, token budget", "streams' tokens/s", "ITL p50 ms", "ITL p99 ms",
              "long prompt's TTFT ms"]  # fmt: skip
    return table(header, rows) + f"\n\nA decode step of the six streams alone: {alone} ms."


def goodput(data: dict[str, Any]) -> str:
    """A row for each server; a column for each load."""
    results = Results(data)
    loads = [load for load in results.loads() if load.startswith("goodput")]
    servers = list(dict.fromkeys(one for load in loads for one in results.servers(load)))
    rows = [[label(one), *(_share(results, load, one) for load in loads)] for one in servers]
    return table(["server", *(load.removeprefix("goodput ") for load in loads)], rows)


def _share(results: Results, load: str, server: str) -> str:
    rows = results.rows(load, server)
    share = results.share(load, server, "good", rows)
    if share is None:
        return "-"
    each = [row["good"] / row["counted"] for row in rows.values() if row["counted"]]
    return f"{share:.2f} ({min(each):.2f} to {max(each):.2f})"


def closed(data: dict[str, Any]) -> str:
    results = Results(data)
    rows = [
        [
            load,
            label(server),
            spread(results.values(load, server, "tokens_per_s")) if load != "pf" else "",
            spread(results.values(load, server, "ttft_p50_ms")),
        ]
        for load in CLOSED
        for server in results.servers(load)
    ]
    return table(["load", "server", "tokens/s", "TTFT p50 ms"], rows)


def tenants(data: dict[str, Any]) -> str:
    results = Results(data)
    rows = []
    for server in results.servers("tenants"):
        ratio = tenant_ratio(results, server)
        rows.append(
            [
                label(server),
                _waits(results, server, "alone_"),
                _waits(results, server, ""),
                "not measured" if ratio is None else f"{ratio:.2f}",
            ]
        )
    return table(["server", "B alone, TTFT ms", "beside the flood", "p95 to p95"], rows)


def _waits(results: Results, server: str, when: str) -> str:
    """The p95 of all rounds, of enough; else the longest of each, which a p95 of few is."""
    pooled = results.pooled("tenants", server, f"{when}ttft_ms")
    p95_ms = known_quantile(pooled, 0.95)
    if p95_ms is not None:
        return f"{p95_ms:,.0f}, p95 of {len(pooled)}"
    longest = spread(results.values("tenants", server, f"{when}ttft_p95_ms"))
    counts = [round(one) for one in results.values("tenants", server, f"{when}requests")]
    if not counts:
        return longest
    what = "longest" if max(counts) < least_count(0.95) else "p95"
    of = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
    return f"{longest}, {what} of {of} a round"


def voice(data: dict[str, Any]) -> str:
    results = Results(data)
    rows = []
    for server in results.servers("voice"):
        shares = [
            results.share("voice", server, part, results.rows("voice", server))
            for part in ("in_time", "good")
        ]
        rows.append(
            [
                label(server),
                *("-" if share is None else f"{share:.3f}" for share in shares),
                spread(results.values("voice", server, "ttft_p95_ms")),
                spread(results.values("voice", server, "batch_tokens_per_s")),
            ]
        )
    header = [
        "server",
        "voice: first token in time",
        "good",
        "TTFT p95 ms",
        "batch prompt tokens/s",
    ]
    alone = results.median(VOICE_CAPACITY, DEFAULT, "batch_s")
    note = "" if alone is None else f"\n\nA batch prompt alone takes {alone:.1f} s."
    return table(header, rows) + note


def acceptance(data: dict[str, Any]) -> str:
    rows = [
        [
            one.name.replace("|", "/"),
            one.limit,
            "not measured" if one.value is None else f"{one.value:.4g}",
            "yes" if one.holds else "**no**",
        ]
        for one in figures(data)
    ]
    return table(["demand", "limit", "value", "holds"], rows)


def failures(data: dict[str, Any]) -> str:
    lines = [f"- {one.line()}." for one in figures(data) if not one.holds]
    lines += [f"- {label(name)} did not take part: {why}." for name, why in data["failed"].items()]
    return "\n".join(lines) if lines else "- Each demand of the first table holds in this run."


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "acceptance": acceptance,
    "machine": machine,
    "mix": mix,
    "goodput": goodput,
    "closed": closed,
    "tenants": tenants,
    "voice": voice,
    "failures": failures,
}
