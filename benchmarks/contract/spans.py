"""The strict OTLP receiver of the tests, and how many trees it has for each request."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contract.client import now_ns
from benchmarks.contract.common import ticking

_REPOSITORY = Path(__file__).parents[2]


class Receiver(Protocol):
    """What the checks need of the tests' receiver."""

    endpoint: str

    def trees(self) -> list[Any]: ...

    def check_all(self) -> None: ...


def receiver_module() -> Any:
    """The tests' module; tests are in no distribution, only in the repository."""
    if str(_REPOSITORY) not in sys.path:
        sys.path.append(str(_REPOSITORY))
    return importlib.import_module("tests.support.servers.otlp_receiver")


def start_receiver() -> AbstractContextManager[Receiver]:
    """`with start_receiver() as receiver:`"""
    receiver: AbstractContextManager[Receiver] = receiver_module().OtlpReceiver()
    return receiver


async def tree_counts(receiver: Receiver, ids: set[str], timeout_s: float = 20) -> Counter[str]:
    """Trees received for each id, once each has one; else those that came in time."""
    deadline_ns = now_ns() + int(timeout_s * 1e9)
    async with ticking("waiting for span trees"):
        while True:
            seen = Counter(tree.attribute("gen_ai.request.id") for tree in receiver.trees())
            mine = Counter({request_id: seen[request_id] for request_id in ids})
            if all(mine.values()) or now_ns() > deadline_ns:
                return mine
            await asyncio.sleep(0.5)
