"""What a gateway says of its fleet, asked twice a second."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from benchmarks.diagnosis.fleet.live.processes import Process
from diagnosis.routed.symptoms import RoutedVerdict
from diagnosis.verdicts.classifier import Diagnosis


@dataclass
class Said:
    """Answers by the symptom that they name first (`""`: none), and what it was said of; and how
    often nothing was said, by why."""

    first: Counter[str] = field(default_factory=Counter)
    culprits: dict[str, Counter[str]] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)


class Watch:
    """Keeps what is said in phases, one after the other."""

    def __init__(self, gateway: Process) -> None:
        self.said = Said()
        self._gateway = gateway
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(15)

    def phase(self) -> Said:
        """What was said since the last call."""
        said, self.said = self.said, Said()
        return said

    def _run(self) -> None:
        while not self._stopped.wait(0.5):
            try:
                body = self._gateway.get("/debug/diagnosis")
                verdict = msgspec.json.decode(body, type=Diagnosis).fleet
            except (OSError, ValueError) as error:
                self.said.unanswered[type(error).__name__] += 1
                continue
            if verdict is None:
                self.said.unanswered["nothing of a fleet"] += 1
            else:
                _take(self.said, verdict)


def _take(said: Said, verdict: RoutedVerdict) -> None:
    said.compared += verdict.compared
    if not verdict.faults:
        said.first[""] += 1
        return
    fault = verdict.faults[0]
    name = fault.symptom.value
    said.first[name] += 1
    said.claims.setdefault(name, fault.claim)
    for culprit in fault.culprits[:1]:
        said.culprits.setdefault(name, Counter())[culprit] += 1
