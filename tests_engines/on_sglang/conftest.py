"""The marks of these tests, whichever configuration they run with."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "live: starts a server, which takes minutes")
