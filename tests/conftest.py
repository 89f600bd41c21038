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
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from telemetry.host.gc_watch import settle_collector
from tests.support.groups import GROUP_OF, GROUPS
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server
from tests.support.slow import SLOW

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

# Images often set it, and then each process of each server compiles all of its modules again. The
# servers inherit this environment.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long a test takes depends on what else the machine does: no test fails by that.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

KINDS = ("server", "long", "short")  # of files, the heaviest first
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """A file at a time, and the files of a group as if they were one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class GroupedFiles(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return GROUP_OF.get(file, file)

    return GroupedFiles(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    kinds: dict[str, str] = {}
    for item in items:
        assert isinstance(item, pytest.Function)
        uses = {getattr(value, "__module__", None) for value in vars(item.module).values()}
        if STARTS_SERVERS & set(item.fixturenames) or uses & set(SERVER_MODULES):
            item.add_marker("server")
        if any(name in item.nodeid for name in SLOW):
            item.add_marker("slow")
        marks = {mark.name for mark in item.iter_markers()}
        kind = next((one for one in KINDS if one in marks), "short")
        kinds[_file_of(item)] = min(kind, kinds.get(_file_of(item), kind), key=KINDS.index)
    places = {file: place for place, file in enumerate(_longest_first(kinds))}
    items.sort(key=lambda item: places[_file_of(item)])


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _longest_first(kinds: dict[str, str]) -> list[str]:
    """The groups; then files that wait for servers and files that compute in turns, so that one of
    each runs at a time; those of short tests last, so that both processes end together."""
    grouped = [file for group in GROUPS for file in group if file in kinds]
    servers, longs, shorts = (
        [file for file, kind in kinds.items() if kind == wanted and file not in GROUP_OF]
        for wanted in KINDS
    )
    turns = chain.from_iterable(zip_longest(servers, longs))
    return [file for file in (*grouped, *turns, *shorts) if file is not None]


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
