"""One cluster of Ray for all tests, and one fleet on it of a gateway and two engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests_fleet.cluster import Cluster, Fleet


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    found = Fleet(cluster)
    try:
        found.deploy(engines=2)
        found.wait_ready(2)
        yield found
    finally:
        cluster.phasescope("stop")
        found.client.close()
