"""Thousands of generated requests against a real server: `make fuzz`.

schemathesis reads `/openapi.json` and generates requests that fit it and requests that do not, for
every operation, through real HTTP. Afterwards: no answer was an error of the server (but a typed
503), each was as documented, `/health` never stalled, nothing leaked, and each request that
was accepted ended once.

    python -m benchmarks.fuzz.api --cases 2000 --seed 1 [-- FLAGS of phasescope serve]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import InvalidArgument, Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

from benchmarks.fuzz.cases import make_servable, make_short
from benchmarks.fuzz.facts import leaks, unpaired_of
from benchmarks.fuzz.watch import HealthWatch, Watched
from benchmarks.starter import serving

MOST_STALL_MS = 100
# they change what is measured
_LEFT_OUT = {("POST", "/debug/profile"), ("PUT", "/debug/telemetry")}
_GENERATION = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_GENERATION_SHARE = 0.6
_CASE_TIMEOUT_S = 60
_AT_ONCE = 4
_SHOWN = 20
_CHECKS = [
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]


@dataclass
class Report:
    """What came of it; `faults` is empty when all is well."""

    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    health: Watched = field(default_factory=Watched)

    def fault(self, kind: str, detail: str) -> None:
        """Keep the first of each kind."""
        self.faults.setdefault(kind, detail)

    def lines(self) -> list[str]:
        """For people."""
        seen = self.health
        statuses = ", ".join(f"{key} {count}" for key, count in sorted(self.statuses.items()))
        return [
            f"{self.cases} cases, {self.requests} generation requests: {statuses}",
            f"/health: {seen.polls} polls, {seen.failed} failed; worst answer "
            f"{seen.answer_ms:.1f} ms, of which the gateway's own at most {seen.stall_ms:.1f} ms; "
            f"waits for a CPU up to {seen.cpu_wait_ms:.1f} ms; poller's lag {seen.lag_ms:.1f} ms",
            *(f"FAULT {kind}: {detail}" for kind, detail in list(self.faults.items())[:_SHOWN]),
            f"{len(self.faults)} kinds of fault",
        ]


def fuzz(url: str, gateway_pid: int, cases: int, seed_number: int) -> Report:
    """Run about so many cases against the server at `url`."""
    report = Report()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [one for one in operations if (one.method.upper(), one.path) not in _LEFT_OUT]
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    with (
        HealthWatch(address.hostname, address.port, gateway_pid) as watch,
        Clients(report) as clients,
    ):
        others = [one for one in operations if one.path not in _GENERATION]
        each = max(1, int(cases * (1 - _GENERATION_SHARE) / 2 / len(others)))
        for number, operation in enumerate(others):
            for mode in GenerationMode:
                _run(operation, mode, each, seed_number + number, clients.send)
        generation = [one for one in operations if one.path in _GENERATION]
        left = max(0, cases - clients.sent)
        for number, operation in enumerate(generation):
            for mode in GenerationMode:
                count = -(-left // (2 * len(generation)))
                _run(operation, mode, count, seed_number + number, clients.send)
    report.health = watch.seen
    _judge(report, url)
    return report


def _judge(report: Report, url: str) -> None:
    """What is left behind, and what the health poller saw."""
    seen = report.health
    if seen.stall_ms > MOST_STALL_MS:
        report.fault("stall", f"/health stalled for {seen.stall_ms:.0f} ms")
    if seen.failed:
        report.fault("health", f"{seen.failed} of {seen.polls} polls failed")
    for leak in leaks(url):
        report.fault("leak", leak)
    report.requests, wrong = unpaired_of(url)
    for one in wrong:
        report.fault("terminal facts", one)


def _run(
    operation: Any, mode: GenerationMode, count: int, number: int, check: Callable[[Case], None]
) -> None:
    """`count` cases at most: fewer where there is less to vary, none where nothing can be wrong."""
    try:
        strategy = operation.as_strategy(generation_mode=mode)

        @seed(number)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def one(case: Case) -> None:
            check(case)

        one()
    except (Unsatisfiable, InvalidArgument):
        if mode is GenerationMode.POSITIVE:
            raise


class Clients:
    """Send cases, a few at once; faults in the answers are noted, and the next case comes."""

    def __init__(self, report: Report) -> None:
        self.sent = 0
        self._report = report
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_AT_ONCE)
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._local = threading.local()
        self._futures: list[Future[None]] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for future in self._futures:
            future.result()

    def send(self, case: Case) -> None:
        """Returns when a client has the case."""
        is_right = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
        if case.operation.path in _GENERATION:
            (make_servable if is_right else make_short)(case.body)
        self.sent += 1
        self._free.acquire()
        self._futures.append(self._pool.submit(self._check, case, is_right))

    def _check(self, case: Case, is_right: bool) -> None:
        try:
            faults, status = self._answer(case)
        finally:
            self._free.release()
        kind = "generation" if case.operation.path in _GENERATION else "other"
        with self._lock:
            self._report.cases += 1
            self._report.statuses[f"{kind} {'right' if is_right else 'wrong'} {status}"] += 1
            for title, told in faults:
                self._report.fault(f"{case.method} {case.operation.path}: {title}", told)

    def _answer(self, case: Case) -> tuple[list[tuple[str, str]], str]:
        """Faults, each with what it is called; and the status."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        try:
            answer = case.call(session=self._local.session, timeout=_CASE_TIMEOUT_S)
        except requests.RequestException as error:
            return [(type(error).__name__, _told(case, str(error)))], "none"
        wanted = list(_CHECKS) if answer.status_code == 503 else [*_CHECKS, not_a_server_error]
        try:
            case.validate_response(answer, checks=wanted)
        except schemathesis.errors.FailureGroup as group:
            faults = [
                (failure.title, _told(case, f"{failure.title}: {failure.message}"))
                for failure in group.exceptions
            ]
            return faults, str(answer.status_code)
        return [], str(answer.status_code)


def _told(case: Case, what: str) -> str:
    return f"{' '.join(what.split())[:400]}; {case.as_curl_command()[:800]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of phasescope serve, after --")
    asked = parser.parse_args()
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="phasescope-fuzz-") as dumps,
        serving("--dump-dir", dumps, *asked.flags) as server,
    ):
        report = fuzz(server.url, server.process.pid, asked.cases, asked.seed)
    print(*report.lines(), f"{time.monotonic() - began_s:.0f} s, seed {asked.seed}", sep="\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
