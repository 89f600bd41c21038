"""Fixtures that take long to build and are shared: the default model and one running server.

Tests that start servers are marked `server` here, by what they use; `make test-fast` leaves them
and those marked `long` out.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

import pytest

from telemetry.host.gc_watch import settle_collector
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server
from tests.support.slow import SLOW

# Images often set it, and then each process of each server compiles all of its modules again. The
# servers inherit this environment.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

STARTS_SERVERS = {"server", "shared_server", "default_model"}
SERVER_MODULES = (
    "tests.support.servers.server", "tests.support.servers.fleet", "benchmarks.starter",
    "lab.drills.servers",
)  # fmt: skip


def pytest_configure() -> None:
    """Nothing that collecting makes is garbage: modules, and the items of seven thousand tests."""
    gc.disable()


def pytest_collection_finish() -> None:
    """The collector need not look at it again at each of its full turns while the tests run."""
    settle_collector()


def pytest_unconfigure() -> None:
    """Else libraries find their types leaked when the interpreter ends, and write a page on it."""
    gc.unfreeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    kinds: dict[Path, str] = {}
    for item in items:
        assert isinstance(item, pytest.Function)
        uses = {getattr(value, "__module__", None) for value in vars(item.module).values()}
        if STARTS_SERVERS & set(item.fixturenames) or uses & set(SERVER_MODULES):
            item.add_marker("server")
        if any(name in item.nodeid for name in SLOW):
            item.add_marker("slow")
        marks = {mark.name for mark in item.iter_markers()}
        kinds[item.path] = next((one for one in ("server", "long") if one in marks), "short")
    places = {path: place for place, path in enumerate(_longest_first(kinds))}
    items.sort(key=lambda item: places[item.path])


def _longest_first(kinds: dict[Path, str]) -> list[Path]:
    """Files that wait for servers and files that compute in turns, so that one of each runs at a
    time; those of short tests last, so that both processes end together."""
    servers, longs, shorts = (
        [path for path, kind in kinds.items() if kind == wanted]
        for wanted in ("server", "long", "short")
    )
    turns = chain.from_iterable(zip_longest(servers, longs))
    return [path for path in (*turns, *shorts) if path is not None]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tensors of tests are small: torch's other threads would only spin, on cores that servers
    and engines of the tests need. Servers are processes of their own and keep their default."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The GGUF of the default model, fetched as `phasescope pull` does."""
    from service.model_files.model_store import ensure_default_model

    return ensure_default_model(lambda line: None)


@pytest.fixture(scope="session")
def receiver() -> Iterator[OtlpReceiver]:
    """A strict OTLP receiver that the shared server exports to."""
    with OtlpReceiver(protocol="grpc") as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(default_model: Path, receiver: OtlpReceiver) -> Iterator[Server]:
    """One real server on the default model; tests leave it empty."""
    with Server("--otlp-endpoint", receiver.endpoint) as running:
        yield running


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    yield shared_server
    from tests.support.servers.server import eventually

    eventually(shared_server.is_empty, "an empty engine after the test")
