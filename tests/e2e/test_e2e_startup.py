"""Wrong start-ups: one clear line on stderr and a non-zero exit; never a traceback."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnosis.symptoms import Symptom
from diagnosis.verdicts.offline import diagnose_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.server import START_TIMEOUT_S, Server, eventually, free_port, spawn

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
}


def failing_start(*args: str) -> str:
    """Run `phasescope serve` to its end; returns the one line of the failure."""
    process = spawn("serve", "--port", str(free_port()), *args, stderr=subprocess.PIPE, text=True)
    _, stderr = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode not in (0, None), stderr
    assert "Traceback" not in stderr, stderr
    line: str = stderr.strip().splitlines()[-1]
    assert line.startswith("phasescope: ")
    return line


def test_a_missing_model_file(tmp_path: Path) -> None:
    """The path is named."""
    assert "nowhere.gguf" in failing_start("--model", str(tmp_path / "nowhere.gguf"))


def test_a_model_that_does_not_load_leaves_a_record(tmp_path: Path, default_model: Path) -> None:
    """Truncated as by half a download, or without a vocabulary: the line names the file, and
    `diagnose` on the journal folder shows it."""
    whole = default_model.read_bytes()
    cut, mute = tmp_path / "cut.gguf", tmp_path / "mute.gguf"
    cut.write_bytes(whole[:5_000_000])
    mute.write_bytes(whole.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz", 1))
    for broken in (cut, mute):
        folder = tmp_path / f"journal of {broken.stem}"
        line = failing_start("--model", str(broken), "--journal-dir", str(folder))
        assert broken.name in line
        said = diagnose_journal(open_journal(folder))

        assert said.verdict == "fault"
        assert said.findings[0].symptom is Symptom.LOAD_FAILURE
        assert line.removeprefix("phasescope: ") in said.findings[0].claim


def test_a_truncated_safetensors(tmp_path: Path) -> None:
    """A folder whose weights end too early."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 300,
        "max_position_embeddings": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"\x40\x00\x00\x00\x00\x00\x00\x00{")
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))

    assert "model.safetensors" in failing_start("--model", str(tmp_path))


def test_an_unsupported_architecture(tmp_path: Path) -> None:
    """The architecture is named, and what is supported."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["FalconForCausalLM"]}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))

    line = failing_start("--model", str(tmp_path))
    assert "FalconForCausalLM" in line
    assert "LlamaForCausalLM" in line


def test_a_port_in_use() -> None:
    """The port is named, before anything slow is done."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        line = failing_start("--model", "dummy:tiny", "--port", str(port))

    assert f"port {port}" in line


def test_a_cache_too_small_for_one_request() -> None:
    """The arithmetic and the two remedies are stated."""
    line = failing_start("--model", "dummy:tiny", "--kv-memory", "1KiB")

    assert "--kv-memory" in line
    assert "--max-model-len" in line


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--max-num-seqs", "0"), "--max-num-seqs"),
        (("--max-batched-tokens", "4"), "--max-batched-tokens"),
        (("--request-timeout", "-1"), "--request-timeout"),
        (("--max-model-len", "1"), "--max-model-len"),
    ],
)
def test_contradicting_settings(flags: tuple[str, str], word: str) -> None:
    """The flag is named."""
    assert word in failing_start("--model", "dummy:tiny", *flags)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The path of a socket has at most 107 bytes, and that of a test's own folder is long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--gateways", "2", "--model", "dummy:tiny"),
        ("engine", "--listen", "127.0.0.1:0", "--key-file", "KEY", "--model", "dummy:tiny"),
        ("serve", "--engines", "ENGINES", "--model", "dummy:tiny"),
    ],
    ids=["gateways", "node", "fleet gateway"],
)
def test_a_server_told_to_end_before_it_is_ready_leaves_nothing(
    short_path: Path, words: tuple[str, ...]
) -> None:
    """Its socket is there, and the folder of its processes, while it imports the rest."""
    files = {"KEY": short_path / "key", "ENGINES": short_path / "engines.toml"}
    files["KEY"].write_text("k" * 64)
    files["ENGINES"].write_text('key_file = "key"\n[engines.a]\naddress = "127.0.0.1:9"\n')
    made, path = short_path / "made", short_path / "server.sock"
    made.mkdir()
    flags = [str(files.get(word, word)) for word in words]
    process = spawn(*flags, "--uds", str(path), env={"TMPDIR": str(made)}, stderr=subprocess.PIPE)
    with process:
        try:
            eventually(path.exists, "its socket", START_TIMEOUT_S, every_s=0.001)
            if "--gateways" in words:
                eventually(lambda: list(made.glob("*/main.sock")), "its folder", every_s=0.001)
        finally:
            process.terminate()
        process.wait(30)

    assert not path.exists()
    assert list(made.iterdir()) == []


def test_an_unreachable_collector_is_reported_and_requests_are_served() -> None:
    """The server starts, serves, and logs that its spans are not delivered."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    with Server("--model", "dummy:tiny", "--otlp-endpoint", endpoint) as server:
        assert server.completion(max_tokens=3).status_code == 200
        eventually(lambda: endpoint.split("//")[1] in server.log(), "a word on the collector")
        assert server.completion(max_tokens=3).status_code == 200
