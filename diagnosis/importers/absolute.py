"""What needs no comparison: what is counted, and a queue that is most of the wait."""

from __future__ import annotations

import msgspec

from diagnosis.importers.findings import finding, is_kv_full, is_thrash
from diagnosis.importers.kinds import Certainty, Seen
from diagnosis.importers.parts import Case
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Record
from diagnosis.importers.thresholds import (
    FAILED_SHARE,
    LEAST_TICK_NS,
    LEAST_TICKS,
    LEAST_WAITING,
    LOST_SHARE,
    PREEMPTED_WAITING,
    STILL_S,
    WAIT_SHARE,
)
from diagnosis.importers.verdict import ImportedFinding
from diagnosis.importers.ways import SLOW_STEPS
from diagnosis.symptoms import Symptom


def counted_findings(case: Case) -> list[ImportedFinding]:
    """The findings that are counted, of the stretch that is judged."""
    found = [_thrash(case), _hung(case), _failed(case), _lost(case)]
    return [one for one in found if one is not None]


def steady_findings(case: Case) -> list[ImportedFinding]:
    """The findings of a whole record that is not compared with anything: a queue that is most of
    the time to the first token, and no burst."""
    queue, prefill = case.now.get(Q.QUEUE_EACH), case.now.get(Q.PREFILL_EACH)
    if queue is None or prefill is None or case.now.get(Q.WAITING, 0.0) < LEAST_WAITING:
        return []
    if queue < WAIT_SHARE * (queue + prefill) or _is_burst(case.record):
        return []
    is_blocks = is_kv_full(case)
    found = finding(
        case,
        Symptom.KV_EXHAUSTION if is_blocks else Symptom.QUEUE_OVERLOAD,
        f"requests wait{' for blocks of the KV cache' if is_blocks else ''} throughout: the queue "
        "is most of the time to their first token",
        Q.QUEUE_EACH, Q.PREFILL_EACH, Q.WAITING, Q.RUNNING, Q.KV_USAGE,
    )  # fmt: skip
    if found is None:
        return []
    if is_blocks:
        return [found]
    slower = tuple(dict.fromkeys((*found.open_to, *SLOW_STEPS)))
    return [msgspec.structs.replace(found, certainty=Certainty.LIKELY, open_to=slower)]


def _is_burst(record: Record) -> bool:
    """Requests that came within less time than is ever compared: what they wait for is each other.
    Where those that wait are counted, they were seen to."""
    begin_ns, end_ns = record.span
    return Seen.WAITING not in record.seen and end_ns - begin_ns < LEAST_TICKS * LEAST_TICK_NS


def _thrash(case: Case) -> ImportedFinding | None:
    if is_thrash(case):
        claim = "running requests lose their blocks and are computed again"
        return finding(case, Symptom.KV_THRASH, claim, Q.PREEMPTIONS, Q.ENDED, Q.KV_USAGE)
    stopped, usual = case.now.get(Q.PREEMPTED, 0.0), case.usual.get(Q.PREEMPTED, 0.0)
    if stopped - usual < PREEMPTED_WAITING:
        return None
    claim = "sequences wait in the middle of their output, as after a preemption"
    return finding(case, Symptom.KV_THRASH, claim, Q.PREEMPTED, Q.WAITING, Q.KV_USAGE)


def _hung(case: Case) -> ImportedFinding | None:
    still_s = case.now.get(Q.STILL, 0.0)
    if still_s < STILL_S:
        return None
    claim = f"the engine made no token for {still_s:.0f} s while requests ran"
    return finding(case, Symptom.ENGINE_HUNG, claim, Q.STILL, Q.RUNNING)


def _failed(case: Case) -> ImportedFinding | None:
    failed, ended = case.now.get(Q.FAILED, 0.0), case.now.get(Q.ENDED, 0.0)
    if not failed or failed < FAILED_SHARE * ended:
        return None
    return finding(case, Symptom.STEP_FAILURE, "requests ended in an error", Q.FAILED, Q.ENDED)


def _lost(case: Case) -> ImportedFinding | None:
    lost, records = case.now.get(Q.LOST, 0.0), case.now.get(Q.ENDED, 0.0)
    if not lost or lost < LOST_SHARE * (lost + records):
        return None
    return finding(case, Symptom.TELEMETRY_DEGRADED, "steps are missing from the record", Q.LOST)
