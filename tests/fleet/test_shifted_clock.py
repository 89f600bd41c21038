"""A real node whose monotonic clock the kernel shifts by 50 s against the gateway's.

Starts processes, and needs root and time namespaces: left to `make test-slow`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.metrics.catalog import fleet
from telemetry.metrics.metric import Metric
from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.server import eventually

SHIFT_S = 50
MODEL = ("--model", "dummy:tiny")


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """The path of a time namespace, which lives as long as a process in it."""
    shifted = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(SHIFT_S)]
    if subprocess.run([*shifted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this container allows no time namespaces")
    with subprocess.Popen([*shifted, "sleep", "600"]) as holder:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        child = eventually(lambda: children.read_text().strip(), "a process in the namespace")
        yield f"/proc/{child}/ns/time"
        holder.kill()


class ShiftedNode(Node):
    """`ShiftedNode(folder, namespace, ...)`"""

    def __init__(self, folder: Path, namespace: str, *args: str) -> None:
        super().__init__(folder, *args)
        self.launcher = ("nsenter", f"--time={namespace}", "--")


def test_requests_add_up_and_lie_where_the_shift_puts_them(tmp_path: Path, namespace: str) -> None:
    """And the two expose every metric of a fleet between them."""
    with (
        ShiftedNode(tmp_path, namespace, *MODEL) as node,
        FleetGateway(FleetFile(tmp_path, [node]), *MODEL) as gateway,
    ):
        eventually(lambda: set(gateway.states().values()) == {"ready"}, "the engine is ready", 60)
        epsilons_ns = []
        for _ in range(12):
            answer = gateway.completion(prompt="Count:", max_tokens=8, ignore_eos=True).json()
            found = gateway.facts_of(answer["id"].removeprefix("cmpl-"))
            ledger = found["ledger"]
            assert ledger["residue_ns"] == 0
            assert sum(entry["ns"] for entry in ledger["entries"]) == found["e2e_ns"]
            (sequence,) = found["sequences"]
            remote = sequence["remote"]
            assert remote["wire_ns"] > 0
            assert remote.get("epoch", 0) == 0
            if "split" not in remote:
                assert remote["findings"] == ["clock_unbounded"]
                continue
            low_ns, high_ns = remote["offset_low_ns"], remote["offset_high_ns"]
            assert low_ns <= SHIFT_S * 10**9 <= high_ns
            moments = [remote[name]["at_ns"] for name in ("received", "last_emission")]
            assert remote["sent_ns"] <= moments[0] <= moments[1] <= remote["arrived_ns"]
            assert sum(remote["split"][name] for name in ("out_ns", "back_ns")) == remote["wire_ns"]
            epsilons_ns.append(remote["received"]["epsilon_ns"])
        assert len(epsilons_ns) > 6
        print("epsilon in us:", sorted(ns // 1000 for ns in epsilons_ns))
        exposed = gateway.client.get("/metrics").text + node.client.get("/metrics").text
        of_a_fleet = [one for one in vars(fleet).values() if isinstance(one, Metric)]
        missing = [one.name for one in of_a_fleet if f"# TYPE {one.exposed} " not in exposed]
        assert missing == []
        assert 'phasescope_clock_epsilon_seconds{engine="n0"}' in exposed
