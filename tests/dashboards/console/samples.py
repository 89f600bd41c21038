"""Moments, requests and findings for tests of the console."""

from __future__ import annotations

from typing import Any

import msgspec

from dashboards.console.markup.words import Clock
from dashboards.console.model.moments import History, Moment
from dashboards.console.model.requests import RequestIndex
from diagnosis.symptoms import Evidence, Exclusion, Finding, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.requests.request_list import LiveLine, RequestLine, RequestsPage, Taker
from telemetry.stats.slo_report import SloReport, SloStatus, SloWindow
from telemetry.stats.snapshot import GridRow, Snapshot

SECOND = 1_000_000_000
CLOCK = Clock(now_ns=1_000 * SECOND, offset_ns=0)
HOSTILE = "<script>alert(1)</script>"


def snapshot(at_ns: int = 0, **fields: Any) -> Snapshot:
    values: dict[str, Any] = {
        "at_ns": at_ns, "window_ns": 10 * SECOND, "ready": True, "engine_pid": 1,
        "engine_restarts": 0, "model": "SmolLM2", "backend": "torch-cpu", "running": 3,
        "waiting": 2, "waiting_tokens": 640, "blocks_used": 25, "blocks_cached": 10,
        "blocks_total": 100, "max_seqs": 64, "budget_tokens": 512, "steps_total": 7,
        "step_ns_p50": 41_500_000, "prompt_tokens_per_s": 12.5, "output_tokens_per_s": 80.0,
        "requests_per_s": 0.5, "prompt_tokens_total": 1, "output_tokens_total": 2,
        "preemptions_total": 0, "requests_total": {"finished": 4}, "percentiles": {},
        "grid_step_ids": (10, 15),
        "grid": (GridRow("chat-7", 7, "running", 33, 5, "wPDDDx"),), "facts_lost": 0,
        "folds_detached": (), "spans_exported": 9, "spans_dropped": 0, "gpu": None,
        **fields,
    }  # fmt: skip
    return Snapshot(**values)


def slo(good: int = 90, attempted: int = 100, burn: float | None = 10.0) -> SloReport:
    windows = tuple(
        SloWindow(
            window_s=length, covered_s=length, attempted=attempted, good=good, tokens=1,
            good_tokens=1, good_requests_per_s=1, good_tokens_per_s=1, burn=burn,
        )
        for length in (60, 300, 3600)
    )  # fmt: skip
    chat = SloStatus(
        name="chat", ttft_target_ns=SECOND // 2, itl_target_ns=SECOND // 10, objective=0.99,
        requests={}, tokens=1, good_tokens=1, windows=windows,
    )  # fmt: skip
    return SloReport(
        default_class="chat", unknown_class_requests=0, price_per_hour=None, classes=(chat,),
        cost=(),
    )  # fmt: skip


def finding(symptom: Symptom = Symptom.PREFILL_INTERFERENCE, **fields: Any) -> Finding:
    values: dict[str, Any] = {
        "symptom": symptom, "confidence": 0.92, "claim": "others' prompts took 5,000 ms",
        "harm_ms": 5000.0, "evidence": (Evidence("co_prefill", 5000.0, "ms"),),
        "culprits": ("report-1", "red"), "victims": ("chat-1",),
        "excluded": (Exclusion(Symptom.HOST_STALL, "the loop did not stand still"),),
        "onset_ns": 900 * SECOND, "runbook": f"runbooks/{symptom.value}.md", **fields,
    }  # fmt: skip
    return Finding(**values)


def moment(at_ns: int = 0, *found: Finding, **fields: Any) -> Moment:
    verdict = "fault" if found else "healthy"
    return Moment(snapshot(at_ns, **fields), Diagnosis(found, 0, 0, not found, verdict))


def history(*moments: Moment) -> History:
    made = History()
    for one in moments:
        made.add(one)
    return made


def line(number: int, **fields: Any) -> RequestLine:
    values: dict[str, Any] = {
        "number": number, "request_id": f"chat-{number}", "tenant": "red", "slo_class": "chat",
        "outcome": "finished", "reason": "stop", "verdict": "good",
        "accepted_ns": number * SECOND, "ended_ns": (number + 1) * SECOND, "ttft_ns": SECOND // 4,
        "tpot_ns": SECOND // 50, "prompt_tokens": 30, "cached_tokens": 0, "output_tokens": 16,
        "phases_ns": {"queue": number * 1_000_000, "prefill": 2_000_000}, **fields,
    }  # fmt: skip
    return RequestLine(**values)


def page(*lines: RequestLine, run_ns: int = 5, **fields: Any) -> RequestsPage:
    values: dict[str, Any] = {
        "run_ns": run_ns, "at_ns": 0, "next": lines[-1].number + 1 if lines else 0,
        "ended": len(lines), "live_total": 1, "requests": lines,
        "live": (LiveLine(request_id="live-1", tenant="", slo_class="", accepted_ns=0),), **fields,
    }  # fmt: skip
    return RequestsPage(**values)


def index(*lines: RequestLine) -> RequestIndex:
    made = RequestIndex()
    assert made.take(page(*lines))
    return made


def victim(number: int, culprit: str, ns: int = SECOND // 2) -> RequestLine:
    changed = {"verdict": "slow_tokens", "late_tokens": 3, "late_most_ns": ns}
    return msgspec.structs.replace(line(number), takers=(Taker(culprit, ns),), **changed)
