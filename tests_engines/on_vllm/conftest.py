"""One sidecar for all tests, as a process registers the plugin once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.attach.inside import plugin
from service.attach.wire import TurnedOff
from tests.attach.sidecar import Connection, Sidecar


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    path: Path = tmp_path_factory.mktemp("attach") / "attach.sock"
    found = Sidecar(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHASESCOPE_ATTACH", str(path))
        plugin.register()
        yield found
    found.close()


@pytest.fixture
def story(sidecar: Sidecar) -> Callable[[object], Connection]:
    """Shuts a world's scheduler down and gives all that its observer has said."""

    def told(scheduler: object) -> Connection:
        scheduler.shutdown()  # type: ignore[attr-defined]
        connection = sidecar.accept()
        connection.read_to_end(is_end=lambda one: isinstance(one, TurnedOff) and one.is_all)
        return connection

    return told
