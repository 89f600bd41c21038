"""An engine's end of a connection in a process of its own, to be stopped and killed.

    python -m tests.fleet.movers.peer_process receive PORT
    python -m tests.fleet.movers.peer_process send
    python -m tests.fleet.movers.peer_process hold

Writes one line for each thing that happens: `port N`, `ready`, `writing`, `failed`, `gone`, and at
its end `writes N`, of which those after `gone` are `late N`. It ends when its input does. `hold`
has memory and NIXL without a connection, and says where: `region ADDRESS METADATA`.
"""

from __future__ import annotations

import itertools
import os
import secrets
import select
import sys

from service.fleet.transfer.actions import Arrived, PeerGone
from service.fleet.transfer.messages import Abort, PeerId
from service.fleet.transfer.movers.nixl_mover import nixl_kind
from service.fleet.transfer.movers.region import Region
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.tcp_session import LinkSettings
from tests.fleet.movers.moved import BLOCK_BYTES, BLOCKS, EPOCH, KEY, MEMORY_KEY, SLOTS, Memory

STOPPED = LinkSettings(proof_s=30.0, silent_s=3.0, ping_s=0.2, region_bytes=SLOTS * BLOCK_BYTES)
"""Of both ends: so soon one that is stopped is given up."""


def say(line: str) -> None:
    print(line, flush=True)


def receive(port: int) -> None:
    """Take blocks until the peer is gone."""
    memory = Memory()
    end = TcpEndpoint(
        "receiver", KEY, memory, MEMORY_KEY, lambda epoch, block: epoch == EPOCH, None,
        patience=STOPPED, mover=nixl_kind(),
    )  # fmt: skip
    peer = end.peer_at(("127.0.0.1", port))
    end.send(peer, Abort(EPOCH))
    _agree(end)
    while not any(isinstance(event, PeerGone) for event in end.receive()):
        os.sched_yield()
    before = memory.writes
    say("gone")
    sys.stdin.read()
    say(f"writes {memory.writes}")
    say(f"late {memory.writes - before}")
    end.close()


def send() -> None:
    """Write blocks, over and over, until the peer is gone."""
    end = TcpEndpoint("sender", KEY, patience=STOPPED, mover=nixl_kind())
    assert end.address is not None
    say(f"port {end.address[1]}")
    peer: PeerId | None = None
    while peer is None:
        for event in end.receive():
            assert isinstance(event, Arrived), event
            peer = event.peer
    _agree(end)
    for count in itertools.count():
        data = [secrets.token_bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
        end.write(peer, MEMORY_KEY, EPOCH, list(range(BLOCKS)), data)
        while not (ended := end.poll()):
            os.sched_yield()
        if not all(getattr(one, "ok", True) for one in ended):
            break
        if not count:
            say("writing")
    say("failed")
    sys.stdin.read()
    end.close()


def hold() -> None:
    """Let writes arrive."""
    region = Region(BLOCK_BYTES)
    mover = nixl_kind().open(region, True)
    say(f"region {region.address} {mover.metadata.hex()}")
    while not select.select([sys.stdin], [], [], 0)[0]:
        mover.progress()
        os.sched_yield()
    mover.close()


def _agree(end: TcpEndpoint) -> None:
    while not (said := end.take_ways()):
        os.sched_yield()
    assert [why for _, why in said] == [None], said
    say("ready")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", port]:
            receive(int(port))
        case ["send"]:
            send()
        case ["hold"]:
            hold()
