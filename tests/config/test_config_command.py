"""`phasescope config` prints the settings that `phasescope serve` uses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from telemetry.facts.engine_records import EngineStarted
from telemetry.journal.journal_reader import read_journal
from tests.support.servers.server import Server, spawn

FILE = """
max_num_seqs = 7
queue_limit = 33
trace_rate = 0.25
kv_memory = "8MiB"
prefix_cache = false
fairness = "fcfs"
debug_key = "key-of-the-file"
"""
ENVIRONMENT = {
    "PHASESCOPE_TRACING": "sampled",
    "PHASESCOPE_QUEUE_LIMIT": "44",
    "PHASESCOPE_TENANT_QUEUE_LIMIT": "9",
    "PHASESCOPE_API_KEY": "key-of-the-environment",
    "PHASESCOPE_NO_SUCH": "1",
}


def config(*words: str, env: dict[str, str] | None = None) -> str:
    """What the command prints, in a process of its own."""
    process = spawn("config", *words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return out.decode()


def test_printed_settings_are_those_of_a_running_server(tmp_path: Path) -> None:
    """Every limit that the engine recorded at its start, and what the gateway answers."""
    file, journal = tmp_path / "serve.toml", tmp_path / "journal"
    file.write_text(FILE)
    words = ("--model", "dummy:tiny", "--config", str(file), "--max-batched-tokens", "96",
             "--max-model-len", "256", "--max-body", "4KiB", "--journal-dir", str(journal),
             "--dtype", "float32", "--otlp-endpoint", "http://127.0.0.1:9")  # fmt: skip
    found = json.loads(config(*words, "--json", env=ENVIRONMENT))["settings"]
    value = {key: one["value"] for key, one in found.items()}
    with Server(*words, env=ENVIRONMENT) as server:
        key = {"authorization": "Bearer key-of-the-environment"}
        debug = {"authorization": "Bearer key-of-the-file"}
        models = server.client.get("/v1/models", headers=key).json()["data"]
        tracing = server.client.get("/debug/tracing", headers=debug).json()
        snapshot = server.client.get("/debug/snapshot", headers=debug).json()
        too_large = server.client.post(
            "/v1/completions", headers=key, json={"prompt": "a" * 5000}
        ).status_code
        closed = [server.client.get(path).status_code for path in ("/v1/models", "/debug/slo")]
    (started,) = (fact for fact in read_journal(journal) if isinstance(fact, EngineStarted))

    engine = {
        "max_num_seqs": started.max_seqs,
        "max_batched_tokens": started.budget_tokens,
        "max_model_len": started.max_model_tokens,
        "queue_limit": started.queue_limit_requests,
        "queue_limit_tokens": started.queue_limit_tokens,
        "tenant_max_seqs": started.tenant_max_seqs,
        "tenant_queue_limit": started.tenant_queue_limit,
        "fairness": started.policy,
        "priority_ageing": started.ageing_ns / 1e9,
        "prefix_cache": started.prefix_cache,
        "chunked_prefill": started.chunked_prefill,
        "speculative_tokens": started.draft_tokens,
        "kv_offload_tenant_share": started.host_tenant_share,
        "dtype": started.dtype,
    }
    assert engine == {key: value[key] for key in engine}
    assert value["queue_limit"] == 44
    assert (tracing["mode"], tracing["rate"]) == (value["tracing"], value["trace_rate"])
    assert snapshot["max_seqs"] == value["max_num_seqs"] == 7
    assert [one["id"] for one in models] == [value["model"]]
    assert value["max_body"] == 4096
    assert too_large == 413
    assert (value["api_key"], value["debug_key"]) == ("set", "set")
    assert closed == [401, 401]
    assert {
        key: found[key]["source"] for key in ("max_num_seqs", "tracing", "max_body", "port")
    } == {
        "max_num_seqs": "file",
        "tracing": "environment",
        "max_body": "flag",
        "port": "default",
    }


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_key_is_never_printed(form: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(FILE)
    shown = config("--config", str(file), *form, env=ENVIRONMENT)
    assert "key-of" not in shown
    assert "PHASESCOPE_API_KEY" in shown
    assert "PHASESCOPE_NO_SUCH" in shown  # a variable that means nothing is pointed out


def test_the_output_is_a_config_file_with_the_same_settings(tmp_path: Path) -> None:
    words = ("--max-num-seqs", "5", "--kv-memory", "1500000", "--cors-origins", "https://a", "*",
             "--no-root-cause", "--price-per-hour", "2.5", "--service-name", 'a "b" \\ \u00e4',
             "--otlp-metrics", "off")  # fmt: skip
    file = tmp_path / "saved.toml"
    file.write_text(config(*words))
    before, after = (
        json.loads(config(*given, "--json"))["settings"]
        for given in (words, ("--config", str(file)))
    )
    assert {key: one["value"] for key, one in after.items()} == {
        key: one["value"] for key, one in before.items()
    }
    assert after["service_name"] == {**before["service_name"], "source": "file",
                                     "origin": str(file)}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-num-seqs", "0"), "--max-num-seqs must be at least 1"),
        (("--max-batched-tokens", "63"), "--max-batched-tokens 63 is below --max-num-seqs 64"),
        (("--slo-file", "none.toml"), "--slo-file none.toml"),
        (("--tenant-keys", "none.txt"), "--tenant-keys none.txt"),
        (("--engine-deadline", "2"), "--engine-deadline must be at least 3"),
    ],
)
def test_wrong_settings_are_refused_as_by_serve(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same line, and without loading a model."""
    lines: list[Any] = []
    for command in ("config", "serve"):
        assert main([command, *words]) == 2
        lines.append(capsys.readouterr().err)
    assert said in lines[0]
    assert lines[0] == lines[1]
    assert lines[0].count("\n") == 1


def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        process = spawn("config", stdout=full, stderr=subprocess.PIPE)
        _, said = process.communicate(timeout=60)

    assert (process.returncode, said) == (1, b"phasescope: No space left on device\n")


def test_a_closed_output_pipe_gives_no_traceback() -> None:
    process = spawn("config", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait(timeout=60) == 141
