"""What load generators write is read by the server's request ids, in nanoseconds."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.clients.comparison import Latency
from benchmarks.clients.tools import TOOLS


def test_guidellm_names_the_answer(tmp_path: Path) -> None:
    """Only what succeeded is read, and a request of one token has no gap."""
    requests = [
        {"response_id": "cmpl-a-1", "time_to_first_token_ms": 2.5, "inter_token_latency_ms": 0.5},
        {"response_id": "cmpl-b", "time_to_first_token_ms": 1.0, "inter_token_latency_ms": None},
    ]
    groups = {"successful": requests, "errored": [{}], "incomplete": []}
    report = {"benchmarks": [{"requests": groups}]}
    (tmp_path / "guidellm.json").write_text(json.dumps(report))

    assert TOOLS["guidellm"].read(tmp_path) == {
        "a-1": Latency(2_500_000, 500_000),
        "b": Latency(1_000_000, None),
    }


def test_aiperf_names_the_request_itself(tmp_path: Path) -> None:
    def line(name: str, error: object, **metrics: float) -> str:
        found = {key: {"value": value, "unit": "ms"} for key, value in metrics.items()}
        return json.dumps({"metadata": {"x_request_id": name}, "metrics": found, "error": error})

    (tmp_path / "aiperf").mkdir()
    (tmp_path / "aiperf" / "profile_export.jsonl").write_text(
        "\n".join(
            [
                line("a", None, time_to_first_token=3.0, inter_token_latency=1.0),
                line("b", {"code": 500}, time_to_first_token=9.0),
            ]
        )
    )

    assert TOOLS["aiperf"].read(tmp_path) == {"a": Latency(3_000_000, 1_000_000)}


def test_inference_perf_keeps_the_answers_chunks(tmp_path: Path) -> None:
    entry = {
        "info": {"response_metrics": {"response_chunks": ['data: {"id":"cmpl-a.1","object":"x"}']}},
        "computed_metrics": {"time_to_first_token": 0.25, "inter_token_latency": 0.001},
        "error": None,
    }
    folder = tmp_path / "inference-perf"
    folder.mkdir()
    records = folder / "per_request_lifecycle_metrics.json"
    records.write_text(json.dumps([entry, {"error": {"error_type": "x"}}]))

    assert TOOLS["inference-perf"].read(tmp_path) == {"a.1": Latency(250_000_000, 1_000_000)}
