"""From a part of the lateness to a cause: one function a part. None where no cause is sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from diagnosis.importers.parts import Case, Part
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.thresholds import KV_FULL, LEAST_PREEMPTED, PREEMPTED_SHARE, SLOTS_FREE
from diagnosis.importers.verdict import ImportedFinding
from diagnosis.importers.ways import told_by
from diagnosis.symptoms import Evidence, Symptom
from diagnosis.verdicts.runbook import runbook_name


def shown(case: Case, *names: Q) -> tuple[Evidence, ...]:
    """What was measured, each followed by the same in the usual time."""
    found: list[Evidence] = []
    for name in names:
        found.append(name.of(case.now.get(name)))
        if case.is_compared:
            found.append(name.usual_of(case.usual.get(name)))
    return tuple(found)


def finding(
    case: Case, symptom: Symptom, claim: str, *names: Q, share: float | None = None
) -> ImportedFinding | None:
    """The finding of a symptom; None where the record has no way to tell the cause."""
    way = told_by(symptom, case.record.seen).way
    if way is None:
        return None
    return ImportedFinding(
        symptom=symptom,
        certainty=way.certainty,
        claim=claim,
        evidence=shown(case, *names),
        runbook=runbook_name(symptom),
        share=None if share is None else round(share, 3),
        open_to=way.open_to,
    )


def is_kv_full(case: Case) -> bool:
    """Who waits finds the cache full, while slots are free or as preemptions say so."""
    if case.now.get(Q.KV_USAGE, 0.0) < KV_FULL:
        return False
    most = case.record.measure([case.record.span]).get(Q.RUNNING_MOST)
    running = case.now.get(Q.RUNNING)
    has_free_slots = most is None or running is None or running < SLOTS_FREE * most
    return has_free_slots or case.now.get(Q.PREEMPTIONS, 0.0) > 0


def is_thrash(case: Case) -> bool:
    """So many preemptions that they are no accident."""
    preempted, ended = case.now.get(Q.PREEMPTIONS, 0.0), case.now.get(Q.ENDED, 0.0)
    return preempted >= max(LEAST_PREEMPTED, PREEMPTED_SHARE * ended)


def _of_front(case: Case, share: float) -> ImportedFinding | None:
    return finding(
        case, Symptom.INGEST_BACKLOG, "requests are late before the queue, or after the engine",
        Q.FRONT_EACH, Q.QUEUE_EACH, share=share,
    )  # fmt: skip


def _of_queue(case: Case, share: float) -> ImportedFinding | None:
    """A full cache, more demand, or neither: then the engine may be slower, and the queue follows
    from that."""
    if is_kv_full(case):
        return finding(
            case, Symptom.KV_EXHAUSTION, "requests wait for blocks of the KV cache",
            Q.KV_USAGE, Q.WAITING, Q.RUNNING, Q.QUEUE_EACH, share=share,
        )  # fmt: skip
    if case.demand_grew is False:
        return None
    names = (Q.REQUESTS_PER_S, Q.PROMPT_EACH, Q.OUTPUT_EACH, Q.QUEUE_EACH, Q.WAITING, Q.RUNNING)
    return finding(
        case, Symptom.QUEUE_OVERLOAD, "requests wait: more work comes than the engine does",
        *(name for name in (*names, Q.KV_USAGE) if name in case.now), share=share,
    )  # fmt: skip


def _of_longer_prompts(case: Case, share: float) -> ImportedFinding | None:
    return finding(
        case, Symptom.LONG_PROMPTS, "first tokens are late, and prompts are longer",
        Q.PROMPT_EACH, Q.PREFILL_EACH, *((Q.HIT_SHARE,) if Q.HIT_SHARE in case.now else ()),
        share=share,
    )  # fmt: skip


def _of_fewer_hits(case: Case, share: float) -> ImportedFinding | None:
    return finding(
        case, Symptom.PREFIX_CACHE_COLD, "prompts are computed that used to be cached",
        Q.HIT_SHARE, Q.PROMPT_EACH, Q.PREFILL_EACH, Q.TOKEN_EACH, share=share,
    )  # fmt: skip


def _of_prompts_beside(case: Case, share: float) -> ImportedFinding | None:
    """Slower steps alone also make prompts overlap for longer."""
    if case.prompts_grew is False:
        return None
    found = finding(
        case, Symptom.PREFILL_INTERFERENCE, "tokens are late while others' prompts are computed",
        Q.TOKEN_EACH, Q.RUNNING, share=share,
    )  # fmt: skip
    return _with_parts(case, found)


def _of_batch(case: Case, share: float) -> ImportedFinding | None:
    """The finding that, with the same demand, more requests run together because each takes
    longer."""
    if case.answers_grew is False:
        return None
    found = finding(
        case, Symptom.OVERSIZED_BATCH, "tokens are late while more requests run together",
        Q.TOKEN_EACH, Q.RUNNING, share=share,
    )  # fmt: skip
    return _with_parts(case, found)


def _with_parts(case: Case, found: ImportedFinding | None) -> ImportedFinding | None:
    """The finding with evidence of how much of the longer time per token goes with what."""
    if found is None:
        return None
    parts = (name.of(case.explained.get(name)) for name in (Q.BY_PROMPTS, Q.BY_BATCH, Q.BY_NEITHER))
    return msgspec.structs.replace(found, evidence=(*found.evidence, *parts))


FINDERS: Mapping[Part, Callable[[Case, float], ImportedFinding | None]] = {
    Part.FRONT: _of_front,
    Part.QUEUE: _of_queue,
    Part.LONGER_PROMPTS: _of_longer_prompts,
    Part.FEWER_HITS: _of_fewer_hits,
    Part.TOKENS_BY_PROMPTS: _of_prompts_beside,
    Part.TOKENS_BY_BATCH: _of_batch,
}
