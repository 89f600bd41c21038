"""What can be wrong, and what a finding says about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Symptom(StrEnum):
    """The causes that are told apart today. Healthy is the empty list of findings."""

    QUEUE_OVERLOAD = "queue_overload"
    PREFILL_INTERFERENCE = "prefill_interference"
    KV_EXHAUSTION = "kv_exhaustion"


class Evidence(msgspec.Struct, frozen=True):
    """One measured quantity behind a finding; harm is always in ms of requests' time."""

    name: str
    value: float
    unit: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time in the window, with its proof and its remedy.

    `harm_ms` is requests' time lost to it; `confidence` is 0 to 1 and grows with the harm
    and with its share of all harm found. `culprits` are request ids, worst first.
    """

    symptom: Symptom
    confidence: float
    claim: str
    harm_ms: float
    evidence: tuple[Evidence, ...]
    culprits: tuple[str, ...]
    runbook: str
