"""A real server under load, calm at first and then with long prompts among the streams.

What it said of itself is kept in a folder: the monitor's snapshot and diagnosis at a moment when
something was found, the account of the request that was made latest by another one, the spans of
both as its receiver got them, and the timeline file.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from docs.pictures.receiver import Receiver

_CALM_S, _LOADED_S, _AFTERWARDS_S = 60, 40, 15
_CALM_USERS, _MORE_USERS = 4, 4
_LONG_EVERY_S = 5.0
_FLAGS = ("--max-num-seqs", "8", "--threads", "1")


def record(folder: Path) -> None:
    """Two minutes; the files are in `folder` afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with Receiver() as receiver, _server(receiver.url) as url:
        load = _Load(url)
        load.users(_CALM_USERS)
        time.sleep(_CALM_S)
        load.users(_MORE_USERS)
        load.long_prompts()
        _keep_the_worst_moment(url, folder)
        load.stop()
        time.sleep(_AFTERWARDS_S)
        late, account = _clearest(url, receiver.spans)
        names = (late["name"], late["culprit"])
        spans = [span for span in receiver.spans if span["request_id"] in names]
        (folder / "explained.json").write_bytes(account)
        (folder / "spans.json").write_text(json.dumps({"late": late, "spans": spans}))
        _phasescope("timeline", url, "-o", str(folder / "timeline.json"))


def _keep_the_worst_moment(url: str, folder: Path) -> None:
    """Look twice a second; keep the screen with most findings and most who wait."""
    best: tuple[int, int] = (-1, -1)
    end_s = time.monotonic() + _LOADED_S
    while time.monotonic() < end_s:
        snapshot, diagnosis = _get(f"{url}/debug/snapshot"), _get(f"{url}/debug/diagnosis")
        found = (len(json.loads(diagnosis)["findings"]), json.loads(snapshot)["waiting"])
        if found >= best:
            best = found
            (folder / "snapshot.json").write_bytes(snapshot)
            (folder / "diagnosis.json").write_bytes(diagnosis)
        time.sleep(0.5)


def _clearest(url: str, spans: list[dict[str, Any]]) -> tuple[dict[str, Any], bytes]:
    """The one of the requests that a long prompt made late, and about as late as any, whose account
    has fewest lines; with that account."""
    stalls = [
        {
            "name": span["request_id"],
            "culprit": span["attributes"]["phasescope.culprit.request_id"],
            "ns": span["end_ns"] - span["start_ns"],
        }
        for span in spans
        if span["name"] == "stall" and span["links"] and span["request_id"].startswith("chat")
    ]
    long = [stall for stall in stalls if stall["culprit"].startswith("report")]
    bar_ns = 0.6 * max(stall["ns"] for stall in long)
    accounts = {
        stall["name"]: _get(f"{url}/debug/requests/{stall['name']}")
        for stall in long
        if stall["ns"] >= bar_ns
    }
    name = min(accounts, key=lambda one: len(json.loads(accounts[one])["ledger"]["entries"]))
    worst = max((s for s in long if s["name"] == name), key=lambda stall: stall["ns"])
    return worst, accounts[name]


class _Load:
    """Streams that are read to their end, one after the other for each user."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()
        self._chats, self._reports = count(1), count(1)

    def users(self, number: int) -> None:
        for _ in range(number):
            threading.Thread(target=self._chat, daemon=True).start()
            time.sleep(0.3)

    def long_prompts(self) -> None:
        threading.Thread(target=self._report, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _chat(self) -> None:
        while not self._stopped.is_set():
            self._ask(f"chat-{next(self._chats)}", prompt_tokens=40, max_tokens=100)

    def _report(self) -> None:
        while not self._stopped.wait(_LONG_EVERY_S):
            self._ask(f"report-{next(self._reports)}", prompt_tokens=1800, max_tokens=12)

    def _ask(self, name: str, prompt_tokens: int, max_tokens: int) -> None:
        number = int(name.split("-")[1])
        prompt = [
            (number * 7919 + place * 104_729) % 40_000 + 100 for place in range(prompt_tokens)
        ]
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            "seed": number,
        }
        request = urllib.request.Request(
            f"{self._url}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-request-id": name},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            for _ in answer:
                pass


@contextmanager
def _server(receiver_url: str) -> Iterator[str]:
    """Ready on a free port; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ["serve", "--port", str(port), *_FLAGS, "--otlp-endpoint", receiver_url]
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", *words, "--otlp-protocol", "http/protobuf"]
    )
    try:
        while True:
            try:
                _get(f"{url}/ready")
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, "the server has ended"
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _phasescope(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "service.cli.main", *words], check=True)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body
