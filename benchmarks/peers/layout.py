"""Where peers, models and logs lie, and commands that say that they are still at work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
_TICK_S = 5.0


class PeerError(Exception):
    """Something that the user can mend; the message is one line that says how."""


def say(text: str) -> None:
    print(text, flush=True)


def default_root() -> Path:
    """`$XDG_CACHE_HOME/phasescope/peers`, by default below ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "peers"


@dataclass(frozen=True)
class Layout:
    """Folders below one root."""

    root: Path

    def venv(self, peer: str) -> Path:
        return self.root / peer

    def python(self, peer: str) -> Path:
        return self.venv(peer) / "bin" / "python"

    @property
    def llama_server(self) -> Path:
        return self.root / "llama.cpp" / "build" / "bin" / "llama-server"

    @property
    def llama_quantize(self) -> Path:
        return self.llama_server.with_name("llama-quantize")

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def hf(self) -> Path:
        """bfloat16 safetensors with the model's tokenizer."""
        return self.models / "SmolLM2-135M-Instruct"

    @property
    def hf_endless(self) -> Path:
        """The same without an end token, for a server that cannot be told to ignore it."""
        return self.models / "SmolLM2-135M-Instruct-endless"

    def openvino(self, weights: str) -> Path:
        return self.models / f"openvino-{weights}"

    def gguf(self, kind: str) -> Path:
        return self.models / f"SmolLM2-135M-Instruct.{kind}.gguf"

    @property
    def corpus(self) -> Path:
        """The text that prompts are drawn from."""
        return self.models / "corpus.txt"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


def run(
    what: str,
    command: Sequence[object],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run to the end, saying every few seconds where it is. PeerError carries its last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"{what} (log: {log})")
    begin_s = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(_TICK_S)
                except subprocess.TimeoutExpired:
                    say(f"  {time.monotonic() - begin_s:4.0f} s  {last_line(log)}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        raise PeerError(f"{what}: failed with status {process.returncode}: {last_line(log, 3)}")


def last_line(log: Path, count: int = 1) -> str:
    """The end of a log, in one line."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return " / ".join(lines[-count:])[-400:]


def fail(error: PeerError) -> int:
    print(f"peers: {error}", file=sys.stderr)
    return 1
