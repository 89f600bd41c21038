"""What a server's own records say after a fuzz: one end for each request, and nothing kept."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import requests

from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded, SequenceSubmitted
from telemetry.journal.journal_reader import read_journal

_IDLE_S = 60
_POLL_S = 0.2


def leaks(url: str) -> list[str]:
    """What the engine still holds once it should be idle, its cache flushed."""
    requests.post(f"{url}/debug/cache/flush", timeout=10)
    end_s = time.monotonic() + _IDLE_S
    left: dict[str, Any] = {"snapshot": "none"}
    while left and time.monotonic() < end_s:
        time.sleep(_POLL_S)
        now = requests.get(f"{url}/debug/snapshot", timeout=30).json()
        left = {name: now[name] for name in ("running", "waiting", "blocks_used") if now[name]}
    return [f"{name} is {value} when idle" for name, value in left.items()]


def unpaired_of(url: str) -> tuple[int, list[str]]:
    """What `unpaired` says of the server's journal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fuzz.journal")
        path.write_bytes(requests.get(f"{url}/debug/journal", timeout=60).content)
        return unpaired(read_journal(path))


def unpaired(facts: Iterable[Fact]) -> tuple[int, list[str]]:
    """How many requests there were, and those without exactly one end."""
    accepted: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    sequences: Counter[int] = Counter()
    for fact in facts:
        match fact:
            case RequestAccepted():
                accepted[fact.request_id] += 1
            case RequestEnded():
                ended[fact.request_id] += 1
            case SequenceSubmitted():
                sequences[fact.seq_id] += 1
            case SequenceEnded():
                sequences[fact.seq_id] -= 1
            case _:
                pass
    wrong = [
        f"request {one!r}: {accepted[one]} accepted, {ended[one]} ended"
        for one in accepted.keys() | ended.keys()
        if accepted[one] != ended[one]
    ]
    wrong += [f"sequence {one}: no end" for one, open_ in sequences.items() if open_ > 0]
    return accepted.total(), wrong
