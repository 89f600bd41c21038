"""Two processes with monotonic clocks that the kernel shifts against each other, over loopback."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys

import pytest

from telemetry.clocks.offset import Exchange, OffsetTracker, drifted_ns
from telemetry.facts.clock import MonotonicClock

SHIFT_S = 50
FRAMES = 200
_SHIFTED = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(SHIFT_S)]
_NODE = """
import socket, struct, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as gateway:
    while gateway.recv(1):
        received_ns = time.perf_counter_ns()
        gateway.sendall(struct.pack("<qq", received_ns, time.perf_counter_ns()))
"""


def has_time_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_SHIFTED, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_time_namespaces(), reason="this container allows no time namespaces")
def test_the_shift_that_the_kernel_makes_is_found_to_within_the_quickest_round_trip() -> None:
    clock, tracker, quickest_ns = MonotonicClock(), OffsetTracker(), 1 << 62
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        command = [*_SHIFTED, sys.executable, "-S", "-c", _NODE, str(server.getsockname()[1])]
        node = subprocess.Popen(command)
        try:
            peer, _ = server.accept()
            with peer, peer.makefile("rb") as frames:
                peer.settimeout(20)
                begin_ns = clock.now_ns()
                for _ in range(FRAMES):
                    sent_ns = clock.now_ns()
                    peer.sendall(b"x")
                    stamps = struct.unpack("<qq", frames.read(16))
                    exchange = Exchange(sent_ns, *stamps, clock.now_ns())
                    assert tracker.add(exchange) is None
                    stay_ns = exchange.node_sent_ns - exchange.node_received_ns
                    trip_ns = exchange.arrived_ns - sent_ns - stay_ns
                    quickest_ns = min(quickest_ns, trip_ns)
        finally:
            node.kill()
            node.wait()
    bounds = tracker.at(exchange.arrived_ns)
    assert bounds is not None

    assert bounds.low_ns <= SHIFT_S * 10**9 <= bounds.high_ns
    drift_ns = 2 * drifted_ns(exchange.arrived_ns - begin_ns, tracker.drift_ppm)
    assert bounds.high_ns - bounds.low_ns <= quickest_ns + drift_ns
    assert tracker.epoch == 0
