"""What the runbooks say of vLLM has vLLM's real names.

They were looked up in the sources of the version below, which `benchmarks.peers` installs; where it
is installed, the lists here are compared with it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.peers.layout import default_root
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.engine_limits import LIMITS
from diagnosis.verdicts.runbook import runbook_path
from telemetry.facts.engine_flags import FLAGS as FLAGS_OF
from tests.diagnosis.test_runbooks import FOLDER, sections

VERSION = "0.32"
METRICS = {
    "vllm:admission_rejections", "vllm:estimated_read_bytes_per_gpu_total",
    "vllm:generation_tokens", "vllm:inter_token_latency_seconds", "vllm:iteration_tokens_total",
    "vllm:kv_cache_usage_perc", "vllm:lora_requests_info", "vllm:num_preemptions",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason",
    "vllm:prefix_cache_hits", "vllm:prefix_cache_queries", "vllm:request_num_preemptions",
    "vllm:request_params_n", "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_prefill_time_seconds", "vllm:request_prompt_tokens",
    "vllm:request_queue_time_seconds", "vllm:request_success", "vllm:time_to_first_token_seconds",
}  # fmt: skip
FLAGS = {
    "--api-server-count", "--async-scheduling", "--disable-log-stats",
    "--enable-chunked-prefill", "--enable-logging-iteration-details", "--enable-mfu-metrics",
    "--enable-prompt-tokens-details", "--enable-scale-out", "--gpu-memory-utilization",
    "--kv-cache-dtype", "--kv-cache-memory-bytes", "--kv-cache-metrics",
    "--kv-offloading-size", "--load-format", "--long-prefill-token-threshold",
    "--max-cpu-loras", "--max-logprobs", "--max-loras", "--max-model-len",
    "--max-num-active-seqs", "--max-num-batched-tokens",
    "--max-num-queued-reqs", "--max-num-queued-tokens", "--max-num-seqs",
    "--no-enable-prefix-caching", "--numa-bind",
    "--otlp-traces-endpoint", "--renderer-num-workers", "--scheduling-policy",
    "--stream-interval", "--structured-outputs-config", "--watermark",
}  # fmt: skip
VARIABLES = {
    "PROMETHEUS_MULTIPROC_DIR", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_GC_DEBUG", "VLLM_SERVER_DEV_MODE",
    "VLLM_XGRAMMAR_CACHE_MB",
}  # fmt: skip
ROUTES = {"/health", "/inference/v1/abort_requests", "/reset_prefix_cache"}

_METRIC = re.compile(r"vllm:\w+")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_VARIABLE = re.compile(r"\b(?:VLLM|PROMETHEUS)_[A-Z_]+\b")
_ROUTE = re.compile(r"(?:GET|POST) (/[\w/]+)")


def section(symptom: Symptom) -> str:
    return sections(runbook_path(symptom))["On vLLM"]


@pytest.mark.parametrize("symptom", Symptom)
def test_a_page_says_what_it_is_on_vllm_and_of_which_version(symptom: Symptom) -> None:
    found = section(symptom)

    assert f"vLLM {VERSION}" in found
    assert _METRIC.search(found) or _FLAG.search(found)


@pytest.mark.parametrize("symptom", Symptom)
def test_a_page_says_what_is_seen_of_an_attached_vllm(symptom: Symptom) -> None:
    """And one whose limits have names there has one of them."""
    found = section(symptom)
    flags = [FLAGS_OF["vllm"][name].flag for name in LIMITS.get(symptom, ())]

    assert "An attached phasescope " in found
    assert not flags or any(flag.removeprefix("--") in found for flag in flags)


@pytest.mark.parametrize("symptom", Symptom)
def test_names_of_vllm_are_those_that_were_looked_up(symptom: Symptom) -> None:
    found = section(symptom)

    assert {re.sub(r"(?<=\w)_total$", "", one) for one in _METRIC.findall(found)} <= {
        re.sub("_total$", "", one) for one in METRICS
    }
    assert set(_FLAG.findall(found)) <= FLAGS
    assert set(_VARIABLE.findall(found)) <= VARIABLES
    assert set(_ROUTE.findall(found)) <= ROUTES


def test_every_name_that_was_looked_up_is_told() -> None:
    """So that the lists stay those of the pages."""
    told = "\n".join(map(section, Symptom))

    assert [one for one in (*METRICS, *FLAGS, *VARIABLES, *ROUTES) if one not in told] == []
    assert f"vLLM {VERSION}" in (FOLDER / "README.md").read_text()


def vllm() -> Path | None:
    """Its sources, where `benchmarks.peers` has installed that version."""
    found = list(default_root().glob("vllm/lib/python3*/site-packages"))
    is_it = bool(found) and any(found[0].glob(f"vllm_cpu-{VERSION}.*.dist-info"))
    return found[0] / "vllm" if is_it else None


@pytest.mark.skipif(vllm() is None, reason="benchmarks.peers has not installed this vLLM")
def test_the_names_are_in_the_sources_of_vllm() -> None:
    """Flags are literals, or fields of a class that flags are made of."""
    root = vllm()
    assert root is not None
    files = (
        "engine/arg_utils.py", "entrypoints/launchers/cli_args.py", "v1/metrics/loggers.py",
        "v1/metrics/perf.py", "v1/metrics/prometheus.py", "envs.py",
        "entrypoints/serve/instrumentator/health.py", "entrypoints/serve/dev/cache/api_router.py",
        "entrypoints/scale_out/token_in_token_out/api_router.py",
    )  # fmt: skip
    text = "\n".join((root / name).read_text() for name in files)

    for no_flag in FLAGS:
        flag = no_flag.replace("--no-", "--")  # each switch has both
        field = flag.removeprefix("--").replace("-", "_")
        assert f'"{flag}"' in text or re.search(rf"^    {field}: ", text, re.MULTILINE), flag
    for name in (*METRICS, *VARIABLES, *ROUTES):
        assert f'"{name}"' in text, name
