"""What a run has found, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.abba import CONTROL, ON


def table(found: dict[str, Any]) -> str:
    """Whatever parts there are."""
    engines = found.get("engine", {})
    parts = [
        _decodes(engines), _prefills(engines), _workloads(found), _telemetry(engines),
        _targets(found), "\n".join(_lines(found)),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _decodes(engines: dict[str, Any]) -> str:
    rows = [
        [shape, row["batch"], row["context"], f"{row['step_ms']:.2f}", f"{row['tokens_per_s']:.0f}",
         f"{row['share']:.2f}", _number(row["busy"])]
        for shape, one in engines.items()
        for row in one.get("decode", ())
    ]  # fmt: skip
    head = ["decode", "batch", "context", "step ms", "tokens/s", "of the copy", "device busy"]
    return _markdown(head, rows)


def _prefills(engines: dict[str, Any]) -> str:
    rows = [
        [shape, row["tokens"], f"{row['ms']:.1f}", f"{row['tokens_per_s']:.0f}",
         f"{row['share']:.2f}"]
        for shape, one in engines.items()
        for row in one.get("prefill", ())
    ]  # fmt: skip
    return _markdown(["prefill", "tokens", "ms", "tokens/s", "of the matrix peak"], rows)


def _workloads(found: dict[str, Any]) -> str:
    """Ours of the whole workload, and of the part of it that transformers had too."""
    rows: list[list[Any]] = []
    for shape, one in found.get("engine", {}).items():
        peer = found.get("transformers", {}).get(shape, {})
        best = peer.get("best") or {}
        rows.append(
            [shape, _rate(one.get("lean")), _rate(one.get("lean_prefix")), _rate(best),
             best.get("mode", "-"), _number(peer.get("times"))]
        )  # fmt: skip
    head = ["workload", "tokens/s", "its first sequences", "transformers", "mode", "times"]
    return _markdown(head, rows)


def _telemetry(engines: dict[str, Any]) -> str:
    rows = [
        [shape, load["batch"], _cost(load, ON, measure), _cost(load, CONTROL, measure), measure]
        for shape, one in engines.items()
        for load in one.get("telemetry", ())
        for measure in ("throughput", "step_p50", "step_p99")
    ]
    return _markdown(["telemetry", "batch", "cost of on (%)", "off against off", "of"], rows)


def _targets(found: dict[str, Any]) -> str:
    words = {True: "met", False: "missed", None: "not measured"}
    rows = [
        [one["name"], _number(one["measured"], 3), one["limit"], one["why"] or words[one["met"]]]
        for one in found.get("targets", ())
    ]
    return _markdown(["target", "measured", "limit", ""], rows)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    checks = [check for shape in found.get("checks", {}).values() for check in shape["errors"]]
    right = sum(check["holds"] for check in checks)
    yield f"{right} of {len(checks)} back ends and formats agree with float32 SDPA"
    for part in found.get("parts", ()):
        if part["reason"]:
            yield f"{part['name']}: {part['state']}, {part['reason']}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _rate(result: dict[str, Any] | None) -> str:
    return f"{result['tokens_per_s']:.0f}" if result else "-"


def _cost(load: dict[str, Any], kind: str, measure: str) -> str:
    cost = load["cost_percent"][kind][measure]
    return f"{cost['percent']:+.2f} ({cost['low']:+.2f} to {cost['high']:+.2f})"
