"""Load generators of others: how each is run, and the latency of each request in what it wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients.comparison import Latency
from benchmarks.clients.environments import environment
from benchmarks.peers.layout import run

_ANSWER_ID = re.compile(r"cmpl-([A-Za-z0-9._-]+)")
_QUIET = {"DO_NOT_TRACK": "1", "PYTHONPATH": ""}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class Load:
    """What every tool is asked to send: `requests` prompts of random words, `streams` at a time."""

    url: str
    model: str
    tokenizer: Path
    folder: Path
    requests: int
    streams: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Tool:
    """`send` runs it; `read` gives each request's latency, by the server's request id."""

    name: str
    send: Callable[[Load], None]
    read: Callable[[Path], Mapping[str, Latency]]


def _run(
    name: str, program: str, arguments: list[str], load: Load, hub: Mapping[str, str] = _OFFLINE
) -> None:
    command = [environment(name) / "bin" / program, *arguments]
    variables = {**_QUIET, **hub, "HOME": str(load.folder)}
    run(name, command, load.folder / f"{name}.log", variables)


def send_guidellm(load: Load) -> None:
    """Text completions, each as long as asked for."""
    words = f"prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}"
    arguments = ["run", "--backend", f"kind=openai_http,target={load.url},model={load.model}"]
    arguments[-1] += ",request_format=/v1/completions"
    arguments += ["--profile", f"kind=concurrent,streams={load.streams}"]
    arguments += ["--constraint", f"kind=max_requests,count={load.requests}"]
    arguments += ["--data", f"kind=synthetic_text,{words}"]
    arguments += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"]
    arguments += ["--output", f"kind=json,path={load.folder / 'guidellm.json'}"]
    arguments += ["--disable-console-interactive"]
    _run("guidellm", "guidellm", arguments, load)


def read_guidellm(folder: Path) -> Mapping[str, Latency]:
    """Its `request_start` is when the request's first byte is sent, by httpcore's trace."""
    report = json.loads((folder / "guidellm.json").read_text())
    (benchmark,) = report["benchmarks"]
    return {
        _request_id(one["response_id"]): Latency(
            one["time_to_first_token_ms"] * 1e6, _ns(one["inter_token_latency_ms"])
        )
        for one in benchmark["requests"]["successful"]
    }


def send_aiperf(load: Load) -> None:
    """Text completions; it sends `x-request-id`, and counts tokens by the server's usage."""
    arguments = ["profile", "--model", load.model, "--url", load.url, "--streaming"]
    arguments += ["--endpoint-type", "completions", "--tokenizer", str(load.tokenizer)]
    arguments += ["--concurrency", str(load.streams), "--request-count", str(load.requests)]
    arguments += ["--isl", str(load.prompt_tokens), "--osl", str(load.output_tokens)]
    arguments += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    arguments += ["--output-artifact-dir", str(load.folder / "aiperf"), "--ui", "none"]
    _run("aiperf", "aiperf", arguments, load, hub={})  # offline it takes a path for a hub's name


def read_aiperf(folder: Path) -> Mapping[str, Latency]:
    (records,) = (folder / "aiperf").rglob("profile_export.jsonl")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    return {
        one["metadata"]["x_request_id"]: Latency(
            _of(one, "time_to_first_token"), _ns(_ms(one, "inter_token_latency"))
        )
        for one in lines
        if one.get("error") is None
    }


def send_inference_perf(load: Load) -> None:
    """Text completions of random tokens; one worker process, since `streams` are few."""
    prompts = {"type": "fixed", "min": 1, "std_dev": 0, "total_count": load.requests}
    settings = {
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": load.model, "base_url": load.url},
        "tokenizer": {"pretrained_model_name_or_path": str(load.tokenizer)},
        "data": {
            "type": "random",
            "input_distribution": {**prompts, "mean": load.prompt_tokens},
            "output_distribution": {**prompts, "mean": load.output_tokens},
        },
        "load": {
            "type": "concurrent",
            "num_workers": 1,
            "stages": [{"num_requests": load.requests, "concurrency_level": load.streams}],
        },
        "report": {
            "request_lifecycle": {
                "per_request": True,
                "use_server_output_tokens": True,
                "per_request_fields": {"computed_metrics": True},
            }
        },
        "storage": {"local_storage": {"path": str(load.folder / "inference-perf")}},
    }
    config = load.folder / "inference-perf.yml"
    config.write_text(json.dumps(settings))  # YAML is a superset of JSON
    _run("inference-perf", "inference-perf", ["--config_file", str(config)], load)


def read_inference_perf(folder: Path) -> Mapping[str, Latency]:
    """Its times are in seconds; the answer's id is in the chunks that it keeps."""
    (records,) = (folder / "inference-perf").rglob("*per_request_lifecycle_metrics.json")
    return {
        _in_chunks(json.dumps(one["info"])): Latency(
            one["computed_metrics"]["time_to_first_token"] * 1e9,
            _times(one["computed_metrics"]["inter_token_latency"], 1e9),
        )
        for one in json.loads(records.read_text())
        if one["error"] is None
    }


def _in_chunks(text: str) -> str:
    found = _ANSWER_ID.search(text)
    assert found is not None, "an answer without an id"
    return found[1]


def _of(record: dict[str, Any], name: str) -> float:
    found = _ns(_ms(record, name))
    assert found is not None, name
    return found


def _ms(record: dict[str, Any], name: str) -> float | None:
    found = record["metrics"].get(name)
    if found is None:
        return None
    assert found["unit"] == "ms", found
    value: float = found["value"]
    return value


def _ns(ms: float | None) -> float | None:
    return _times(ms, 1e6)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _request_id(answer_id: str) -> str:
    """The server's id in an answer's."""
    return answer_id.partition("-")[2]


TOOLS = {
    "guidellm": Tool("guidellm", send_guidellm, read_guidellm),
    "aiperf": Tool("aiperf", send_aiperf, read_aiperf),
    "inference-perf": Tool("inference-perf", send_inference_perf, read_inference_perf),
}
