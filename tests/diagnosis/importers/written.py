"""Evidence as other tools document it, a line a record, for a time that the test says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnosis.importers.kinds import Kind
from diagnosis.importers.reading import Tally
from diagnosis.importers.records import Record
from diagnosis.importers.registry import READERS, diagnose_files
from diagnosis.importers.verdict import ImportedDiagnosis

BEGIN_MS = 1_782_777_600_000
RECORDED = Path(__file__).parent / "recorded"
Line = dict[str, Any]


def silent(what: str) -> None:
    """Progress that nobody reads."""


def write(path: Path, lines: Iterable[Line]) -> Path:
    """As JSON lines, compressed where the name says so."""
    text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    return path


def read(kind: Kind, path: Path, tally: Tally | None = None) -> Record:
    return READERS[kind]([path], tally or Tally(), silent)


def diagnose(kind: Kind, path: Path) -> ImportedDiagnosis:
    return diagnose_files(kind, [path], silent)


def forward_pass(
    number: int,
    at_ms: float,
    wall_ms: float,
    *,
    rows: int = 8,
    prompt: int = 0,
    waiting: int = 0,
    stopped: int = 0,
    mode: str = "full",
) -> Line:
    """A line of Dynamo's forward-pass metrics."""
    scheduled = {
        "num_prefill_requests": int(prompt > 0), "sum_prefill_tokens": prompt,
        "sum_prefill_kv_tokens": 0, "num_decode_requests": rows,
        "sum_decode_kv_tokens": 400 * rows,
    }  # fmt: skip
    queued = {
        "num_prefill_requests": waiting, "sum_prefill_tokens": 100 * waiting,
        "num_decode_requests": stopped, "sum_decode_kv_tokens": 0,
    }  # fmt: skip
    fpm = {
        "version": 1, "worker_id": "4192", "dp_rank": 0, "counter_id": number,
        "wall_time": wall_ms / 1e3, "scheduled_requests": scheduled, "queued_requests": queued,
    }  # fmt: skip
    event = {
        "schema": "dynamo.fpm.trace.v1",
        "source": {"namespace": "default", "component": "backend", "producer_id": "4192"},
        "capture_mode": mode, "observed_at_unix_ms": BEGIN_MS + at_ms, "fpm": fpm,
    }  # fmt: skip
    return {"timestamp": int(at_ms), "event": event}


def dynamo_request(
    at_ms: float,
    *,
    wait_ms: float = 2.0,
    prefill_ms: float = 50.0,
    token_ms: float = 20.0,
    prompt: int = 400,
    cached: int = 300,
    output: int = 51,
    finish: str = "stop",
) -> Line:
    """A `request_end` of Dynamo's request traces."""
    first = wait_ms + prefill_ms
    request = {
        "request_id": "dynamo-request-id", "model": "my-model", "input_tokens": prompt,
        "output_tokens": output, "cached_tokens": cached,
        "request_received_ms": BEGIN_MS + int(at_ms), "prefill_wait_time_ms": wait_ms,
        "prefill_time_ms": prefill_ms, "ttft_ms": first,
        "total_time_ms": first + token_ms * (output - 1), "avg_itl_ms": token_ms,
        "kv_hit_rate": cached / prompt, "worker": {"decode_worker_id": 1},
        "finish_reason_metadata": {"finish_reason": finish, "tool_calls": []},
    }  # fmt: skip
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end",
        "event_time_unix_ms": BEGIN_MS + int(at_ms), "event_source": "dynamo",
        "agent_context": {"session_id": "research-run-42"}, "request": request,
    }  # fmt: skip


def sglang_request(
    at_s: float,
    *,
    front_s: float = 0.002,
    queue_s: float = 0.001,
    prefill_s: float = 0.05,
    token_s: float = 0.02,
    prompt: int = 400,
    cached: int = 300,
    output: int = 51,
    retractions: int = 0,
    status: int | None = None,
) -> Line:
    """A line of SGLang's request files."""
    received = BEGIN_MS / 1e3 + at_s
    entry = received + front_s + queue_s
    first = front_s + queue_s + prefill_s
    finish: Line = {"type": "length", "length": output}
    if status is not None:
        finish = {"type": "abort", "message": "failed", "status_code": status, "err_type": "X"}
    return {
        "request_parameters": json.dumps({"text": "a secret prompt"}), "id": "some-id",
        "finish_reason": finish, "prompt_tokens": prompt, "weight_version": "default",
        "num_retractions": retractions, "forward_entry_time": entry,
        "prefill_finished_time": entry + prefill_s, "queue_time": queue_s,
        "reasoning_tokens": 0, "completion_tokens": output, "cached_tokens": cached,
        "request_received_ts": received, "first_token_latency": first,
        "api_server_dispatch_finish_ts": received + front_s,
        "request_finished_ts": received + first + token_s * (output - 1),
    }  # fmt: skip


def llama_answer(
    *, computed: int = 40, cached: int = 360, prompt_ms: float = 30.0, token_ms: float = 10.0
) -> Line:
    """A chat completion of llama.cpp's server."""
    timings = {
        "cache_n": cached, "prompt_n": computed, "prompt_ms": prompt_ms,
        "prompt_per_token_ms": 0.7, "prompt_per_second": 1300.0, "predicted_n": 51,
        "predicted_ms": token_ms * 50, "predicted_per_token_ms": token_ms,
        "predicted_per_second": 100.0,
    }  # fmt: skip
    return {
        "choices": [{"finish_reason": "stop", "index": 0, "message": {"content": "a secret"}}],
        "created": 1_782_777_600, "object": "chat.completion", "timings": timings,
    }  # fmt: skip


def trt_iteration(
    host_ms: float,
    device_ms: float,
    *,
    rows: int = 8,
    prompt: int = 0,
    queued: int = 0,
    used: int = 20,
    paused: int = 0,
) -> Line:
    """One object of TensorRT-LLM's `/metrics`."""
    batch = {
        "numContextRequests": int(prompt > 0), "numCtxTokens": prompt, "numCtxKvTokens": 0,
        "numGenRequests": rows, "numGenKvTokens": 400 * rows, "numPausedRequests": paused,
        "numScheduledRequests": rows, "microBatchId": 0,
    }  # fmt: skip
    blocks = {"usedNumBlocks": used, "maxNumBlocks": 100, "tokensPerBlock": 32}
    return {
        "iter": 1, "iterLatencyMS": 2 * host_ms, "hostStepTimeMS": host_ms,
        "prevDeviceStepTimeMS": device_ms, "schedulerMode": "overlap", "attentionDpRank": 0,
        "numQueuedRequests": queued, "numActiveRequests": rows, "gpuMemUsage": 58_941_767_680,
        "inflightBatchingStats": batch, "kvCacheStats": blocks,
    }  # fmt: skip
