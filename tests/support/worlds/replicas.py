"""Replicas of a fleet, as they would have been read: how fast they are, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from diagnosis.fleet.replica import Replica
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.numbers.hdr import Distribution, distribution_of
from telemetry.requests.classes import WorkloadClass
from telemetry.requests.phases import Measure
from telemetry.stats.slo_report import SloReport, SloStatus, SloWindow, Verdict, burn_of

MS = 1_000_000
REQUESTS = 60


def finding(symptom: Symptom, harm_ms: float = 1000.0, *culprits: str) -> Finding:
    return Finding(
        symptom=symptom, confidence=0.9, claim=f"{symptom.value}, and what it cost",
        harm_ms=harm_ms, evidence=(), culprits=culprits, runbook=f"runbooks/{symptom.value}.md",
    )  # fmt: skip


def diagnosis(*findings: Finding) -> Diagnosis:
    verdict = "fault" if findings else "healthy"
    return Diagnosis(findings, 30_000_000_000, 100, not findings, verdict)


def latencies(
    requests: int = REQUESTS,
    itl_ms: float = 40.0,
    ttft_ms: float = 200.0,
    tenants: Mapping[str, float] | None = None,
    prompt: str = "129-512",
) -> dict[tuple[Measure, WorkloadClass], Distribution]:
    """Of a minute: values spread by a fifth around those given. `tenants` share the requests."""
    found = {}
    for tenant, share in (tenants or {"none": 1.0}).items():
        cell, count = WorkloadClass("chat", prompt, "cold", tenant), round(requests * share)
        for measure, middle_ms, values in (
            (Measure.ITL, itl_ms, 20 * count), (Measure.TTFT, ttft_ms, count),
            (Measure.TOKENIZE, 1.0, count),
        ):  # fmt: skip
            spread = [middle_ms * (0.8 + 0.4 * k / max(1, values)) for k in range(values)]
            found[measure, cell] = distribution_of([int(one * MS) for one in spread])
    return {key: values for key, values in found.items() if values.count}


def slo(attempted: int = REQUESTS, good: int = REQUESTS, name: str = "chat") -> SloReport:
    window = SloWindow(
        window_s=60, covered_s=60.0, attempted=attempted, good=good, tokens=0, good_tokens=0,
        good_requests_per_s=good / 60, good_tokens_per_s=0.0, burn=burn_of(attempted, good, 0.99),
    )  # fmt: skip
    status = SloStatus(
        name=name, ttft_target_ns=500 * MS, itl_target_ns=100 * MS, objective=0.99,
        requests={verdict.value: 0 for verdict in Verdict} | {"good": good}, tokens=0,
        good_tokens=0, windows=(window,),
    )  # fmt: skip
    return SloReport(
        default_class="chat", unknown_class_requests=0, price_per_hour=None, classes=(status,),
        cost=(),
    )  # fmt: skip


def replica(name: str, *findings: Finding, **more: object) -> Replica:
    """One that serves, a minute like the others'."""
    known: dict[str, object] = {
        "name": name, "diagnosis": diagnosis(*findings), "ready": True, "model": "SmolLM2",
        "backend": "native-cpu, float32", "version": "0.1.0", "running": 2,
        "latencies": latencies(), "slo": slo(),
    }  # fmt: skip
    return Replica(**{**known, **more})  # type: ignore[arg-type]


def idle(name: str) -> Replica:
    return replica(name, running=0, latencies={}, slo=slo(0, 0))


def unreachable(name: str) -> Replica:
    return Replica(name=name, why_unread="cannot be read: [Errno 111] Connection refused")


def healthy(count: int, *names: str) -> Sequence[Replica]:
    return [replica(name) for name in (names or [f"http://r{k}:8000" for k in range(count)])]


def encoded(body: object) -> bytes:
    return msgspec.json.encode(body)
