"""LoadGen's numbers, the client's and the server's, brought to one definition and compared.

    scheduled   issued    sent    accepted          first sent  first   ...   last
        |         |        |         |                  |         |            |
        +--delay--+-adapter+-network-+------server------+-network-+------------+
        <------------------------ LoadGen: TTFT ------------------>
                                     <- server: TTFT -->

LoadGen's TTFT begins when a query was scheduled, the server's when its headers had been read,
and the server's ends when the first token was handed to the socket. What passed between the
schedule and the write of the request is LoadGen's and the adapter's own: it is measured for
each request (LoadGen's trace states the delay, the adapter stamps the rest) and added to the
server's value, so that both begin where LoadGen begins. The way to the server and back stays
in the difference. The client's TTFT is its stamps with LoadGen's delay before them.

TPOT is the time from first to last token over the tokens after the first: LoadGen's and the
client's by arrival, the server's by the commits of the engine's steps. A percentile p of n
values is LoadGen's: the sorted value with index floor(n * p), counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PERCENTILES = (0.50, 0.90, 0.97, 0.99)
DETAIL_FILE, TRACE_FILE = "mlperf_log_detail.txt", "mlperf_log_trace.json"
SUMMARY_FILE = "mlperf_log_summary.txt"
_MARK = ":::MLLOG "


class LogUnreadable(Exception):
    """A log of LoadGen's lacks what it should have; the message is one line."""


def loadgen_percentile(values: Iterable[int], share: float) -> int:
    """The percentile by LoadGen's rule. Raises ValueError of nothing."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of no values")
    return ordered[int(len(ordered) * share)]


def relative(value: float, reference: float) -> float:
    """How far `value` is from `reference`, as a share of it."""
    return (value - reference) / reference


def read_detail(text: str) -> dict[str, Any]:
    """Keys and values of the detail log; the last value of a key that comes again."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(_MARK):
            entry = json.loads(line[len(_MARK) :])
            found[entry["key"]] = entry["value"]
    if not found:
        raise LogUnreadable(f"{DETAIL_FILE} has no line that begins with {_MARK.strip()}")
    return found


@dataclass(frozen=True)
class Reported:
    """One percentile as LoadGen reports it, in nanoseconds."""

    ttft_ns: int
    tpot_ns: int


def reported(detail: dict[str, Any], share: float) -> Reported:
    name = f"{100 * share:.2f}"
    keys = (
        f"result_first_token_{name}_percentile_latency_ns",
        f"result_time_per_output_token_{name}_percentile_ns",
    )
    missing = [key for key in keys if key not in detail]
    if missing:
        raise LogUnreadable(f"{DETAIL_FILE} lacks {missing[0]}; was the test cut short?")
    return Reported(*(int(detail[key]) for key in keys))


@dataclass(frozen=True)
class TracedSample:
    """One query in LoadGen's trace, nanoseconds after the moment it was scheduled for."""

    sequence: int
    issue_ns: int
    complete_ns: int


def read_trace(text: str) -> list[TracedSample]:
    """The queries in the order of their issue."""
    samples = []
    for line in text.splitlines():
        if '"sample_seq"' not in line or '"complete_ns"' not in line:
            continue
        given = json.loads(line.strip().rstrip(","))["args"]
        sequence, issue_ns = int(given["sample_seq"]), int(given["issue_start_ns"])
        samples.append(TracedSample(sequence, issue_ns, int(given["complete_ns"])))
    return sorted(samples, key=lambda sample: sample.sequence)


@dataclass(frozen=True)
class Request:
    """One request from all three sides; moments are on one clock, in nanoseconds."""

    request_id: str
    issue_delay_ns: int
    issued_ns: int
    sent_ns: int
    accepted_ns: int
    first_ns: int
    last_ns: int
    output_tokens: int
    server_ttft_ns: int
    server_tpot_ns: int

    @property
    def client_ttft_ns(self) -> int:
        """From LoadGen's schedule to the arrival of the first token."""
        return self.issue_delay_ns + self.first_ns - self.issued_ns

    @property
    def server_shifted_ttft_ns(self) -> int:
        """The server's, had it begun where LoadGen's does but for the way to the server."""
        return self.issue_delay_ns + self.sent_ns - self.issued_ns + self.server_ttft_ns

    @property
    def client_tpot_ns(self) -> int:
        return (self.last_ns - self.first_ns) // (self.output_tokens - 1)

    @property
    def parts_ns(self) -> dict[str, int]:
        """What LoadGen's TTFT consists of, beside the server's."""
        return {
            "scheduled to issued": self.issue_delay_ns,
            "issued to sent": self.sent_ns - self.issued_ns,
            "sent to accepted": self.accepted_ns - self.sent_ns,
            "server": self.server_ttft_ns,
            "first sent to arrived": self.first_ns - self.accepted_ns - self.server_ttft_ns,
        }


def join(
    stamps: Sequence[dict[str, Any]],
    trace: Sequence[TracedSample],
    facts: dict[str, dict[str, Any]],
) -> list[Request]:
    """Stamps and trace are both in the order of issue. Raises LogUnreadable when they differ."""
    if len(stamps) != len(trace):
        raise LogUnreadable(
            f"{TRACE_FILE} has {len(trace)} queries, the adapter sent {len(stamps)}"
        )
    requests = []
    for stamp, traced in zip(stamps, trace, strict=True):
        fact = facts[stamp["request_id"]]
        if fact["outcome"] != "finished" or fact["output_tokens"] != stamp["tokens"]:
            raise LogUnreadable(
                f"{stamp['request_id']}: the server has {fact['outcome']} with "
                f"{fact['output_tokens']} tokens, the client {stamp['tokens']}"
            )
        requests.append(
            Request(
                request_id=stamp["request_id"],
                issue_delay_ns=traced.issue_ns,
                issued_ns=stamp["issued_ns"],
                sent_ns=stamp["sent_ns"],
                accepted_ns=fact["accepted_ns"],
                first_ns=stamp["first_ns"],
                last_ns=stamp["last_ns"],
                output_tokens=stamp["tokens"],
                server_ttft_ns=fact["ttft_ns"],
                server_tpot_ns=fact["tpot_ns"],
            )
        )
    return requests


@dataclass(frozen=True)
class Row:
    """One metric at one percentile, by each of the three, in nanoseconds.

    `stated_ns` is the server's as `/debug/requests` has it, which for TTFT begins later.
    """

    metric: str
    share: float
    loadgen_ns: int
    client_ns: int
    server_ns: int
    stated_ns: int

    @property
    def client_difference(self) -> float:
        return relative(self.client_ns, self.loadgen_ns)

    @property
    def server_difference(self) -> float:
        return relative(self.server_ns, self.loadgen_ns)

    @property
    def stated_difference(self) -> float:
        return relative(self.stated_ns, self.loadgen_ns)

    @property
    def worst(self) -> float:
        return max(abs(self.client_difference), abs(self.server_difference))


def compare(detail: dict[str, Any], requests: Sequence[Request]) -> list[Row]:
    """A row for each metric and percentile; all three sides by LoadGen's definitions."""
    sides = {
        "ttft": (
            [request.client_ttft_ns for request in requests],
            [request.server_shifted_ttft_ns for request in requests],
            [request.server_ttft_ns for request in requests],
        ),
        "tpot": (
            [request.client_tpot_ns for request in requests],
            [request.server_tpot_ns for request in requests],
            [request.server_tpot_ns for request in requests],
        ),
    }
    rows = []
    for metric, values in sides.items():
        for share in PERCENTILES:
            theirs = getattr(reported(detail, share), f"{metric}_ns")
            client_ns, server_ns, stated_ns = (loadgen_percentile(side, share) for side in values)
            rows.append(Row(metric, share, theirs, client_ns, server_ns, stated_ns))
    return rows


def parts_table(requests: Sequence[Request]) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of each part of TTFT, in ms."""
    names = list(requests[0].parts_ns)
    found = {}
    for name in names:
        values = [request.parts_ns[name] for request in requests]
        found[name] = {
            "p50_ms": loadgen_percentile(values, 0.50) / 1e6,
            "p99_ms": loadgen_percentile(values, 0.99) / 1e6,
        }
    return found


def read_folder(folder: Path) -> tuple[dict[str, Any], list[TracedSample]]:
    """Detail and trace of a run."""
    detail = read_detail((folder / DETAIL_FILE).read_text())
    return detail, read_trace((folder / TRACE_FILE).read_text())


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| | LoadGen ms | client ms | difference | server ms | difference | as stated |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.metric.upper()} p{100 * row.share:.0f} | {row.loadgen_ns / 1e6:.2f} "
        f"| {row.client_ns / 1e6:.2f} | {100 * row.client_difference:+.2f} % "
        f"| {row.server_ns / 1e6:.2f} | {100 * row.server_difference:+.2f} % "
        f"| {100 * row.stated_difference:+.2f} % |"
        for row in rows
    ]
    return "\n".join(lines)
