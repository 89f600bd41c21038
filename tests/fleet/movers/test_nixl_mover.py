"""NIXL itself, two ends in one process; and the memory that it is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.cli.extras import require_transport
from service.config.setting import ConfigError
from service.fleet.transfer.movers.mover import BlockMover, MoverError
from service.fleet.transfer.movers.nixl_mover import NOT_INSTALLED, is_installed, nixl_kind
from service.fleet.transfer.movers.region import Region
from tests.fleet.waiting import until

with_nixl = pytest.mark.skipif(not is_installed(), reason=NOT_INSTALLED)
_LISTENS = "0A"
_LOOPBACK = "0100007F"


def opened() -> tuple[BlockMover, Region]:
    region = Region(1 << 16)
    return nixl_kind().open(region, True), region


def sockets() -> set[str]:
    """Of this process, by their numbers in /proc/net."""
    entries = Path("/proc/self/fd").iterdir()
    links = [os.readlink(entry) for entry in entries if entry.is_symlink()]
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def listening() -> dict[str, str]:
    """Addresses of IPv4 at which somebody listens, by the number of the socket."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[9]: line[1].split(":")[0] for line in lines if line[3] == _LISTENS}


def ends_of(mover: BlockMover, other: BlockMover) -> list[bool]:
    """Of the writes of the first, when one has ended."""

    def ended() -> list[tuple[int, bool]]:
        other.progress()
        return mover.progress()

    return [ok for _, ok in until(ended)]


@with_nixl
def test_metadata_that_nixl_has_not_made_is_refused_and_the_mover_goes_on() -> None:
    mover, region = opened()
    for made_up in (b"", b"\0" * 40, mover.metadata[:-20], mover.metadata, bytes(range(256))):
        with pytest.raises(MoverError):
            mover.connect(made_up)
    other, other_region = opened()
    mover.connect(other.metadata)
    with pytest.raises(MoverError):  # memory that the peer has not registered
        mover.begin(0, region.address, 64)
    region.view(0, 4)[:] = b"last"
    mover.begin(0, other_region.address, 4)

    assert ends_of(mover, other) == [True]
    assert bytes(other_region.view(0, 4)) == b"last"
    mover.close()
    other.close()


@with_nixl
def test_beside_a_connection_over_loopback_it_listens_there_only_and_closed_nowhere() -> None:
    opened()[0].close()  # what the library keeps for the process
    before = sockets()
    movers = [opened()[0] for _ in range(2)]
    own = sockets() - before
    addresses = {where for number, where in listening().items() if number in own}
    for mover in movers:
        mover.close()
        mover.close()

    assert addresses == {_LOOPBACK}
    assert sockets() == before


@with_nixl
def test_a_peer_that_was_closed_is_not_written_to() -> None:
    (mover, _), (other, region) = opened(), opened()
    mover.connect(other.metadata)
    region.view(0, 4)[:] = b"kept"
    mover.begin(0, region.address + 8, 4)
    assert ends_of(mover, other) == [True]
    other.close()
    ended: list[tuple[int, bool]] = []
    try:
        mover.begin(0, region.address, 4)
        ended = until(mover.progress)
    except MoverError:
        ended = [(0, False)]

    assert [ok for _, ok in ended] == [False]
    assert bytes(region.view(0, 4)) == b"kept"
    mover.close()


@pytest.mark.skipif(is_installed(), reason="NIXL is installed")
def test_a_node_that_is_to_use_what_is_not_installed_says_so_before_it_loads() -> None:
    with pytest.raises(ConfigError, match="pip install"):
        require_transport("nixl")


def test_memory_of_a_connection_that_ended_is_given_back_and_its_addresses_are_not() -> None:
    region = Region(1 << 20)
    region.view(0, 4)[:] = b"held"
    address = region.address
    region.retire()
    region.retire()
    others = [Region(1 << 20) for _ in range(8)]

    assert all(one.address != address for one in others)
    assert not bytes(others[0].view(0, 4)).strip(b"\0")
    with open("/proc/self/maps", encoding="ascii") as maps:
        spans = [line.split()[:2] for line in maps]
    held = [
        rights
        for span, rights in spans
        for begin, end in [[int(edge, 16) for edge in span.split("-")]]
        if begin <= address < end
    ]
    assert [rights[:2] for rights in held] == ["--"]
