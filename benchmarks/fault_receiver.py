"""An OTLP receiver in a process of its own that misbehaves on demand and keeps no span.

It is the receiver of the tests, so that a benchmark meets the same faults as they do. Prints
its port; then a line on standard input names a fault (`dead`, one of the tests' `Fault`, or
`healthy`) and is answered by the counts so far.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.contract.spans import receiver_module

REPOSITORY = Path(__file__).resolve().parents[1]
HEALTHY, DEAD = "healthy", "dead"
FAULTS = (DEAD, "black_hole", "unavailable", "partial", "slow", "refuse")


class FaultReceiver:
    """`with FaultReceiver("grpc") as receiver: receiver.set("slow")`."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol

    def __enter__(self) -> FaultReceiver:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fault_receiver", self.protocol],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = str(self._answer()["endpoint"])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def flags(self) -> tuple[str, ...]:
        """What sends a server's spans here."""
        wire = "grpc" if self.protocol == "grpc" else "http/protobuf"
        return ("--otlp-endpoint", self.endpoint, "--otlp-protocol", wire)

    def set(self, fault: str) -> dict[str, int]:
        """Change the behaviour; the counts so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{fault}\n")
        self._process.stdin.flush()
        found = self._answer()
        return {name: int(found[name]) for name in ("requests", "spans_taken")}

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the span receiver ended")
        found: dict[str, object] = json.loads(line)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("protocol", choices=["grpc", "http"])
    protocol = parser.parse_args().protocol
    module = receiver_module()
    with module.OtlpReceiver(protocol, keep=False) as receiver:
        print(json.dumps({"endpoint": receiver.endpoint}), flush=True)
        for line in sys.stdin:
            wanted = line.strip()
            if wanted == DEAD:
                receiver.down()
            elif receiver.is_down:
                receiver.up()
            receiver.fault = None if wanted in (HEALTHY, DEAD) else module.Fault(wanted)
            counts = {"requests": receiver.requests, "spans_taken": receiver.spans_taken}
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
