"""Which limits bear on each symptom, under the names of the engine that is attached."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from diagnosis.symptoms import Finding, Symptom
from telemetry.facts.engine_flags import limit_of
from telemetry.facts.engine_records import EngineStarted

S = Symptom

LIMITS: dict[Symptom, tuple[str, ...]] = {
    S.QUEUE_OVERLOAD: ("max_num_seqs", "queue_limit", "queue_limit_tokens"),
    S.PREFILL_INTERFERENCE: ("max_batched_tokens", "prompt_part", "chunked_prefill"),
    S.LONG_PROMPTS: ("max_batched_tokens", "prompt_part"),
    S.PREFIX_CACHE_COLD: ("prefix_cache", "kv_memory"),
    S.KV_EXHAUSTION: ("kv_memory", "kv_format", "max_num_seqs"),
    S.KV_THRASH: ("kv_memory", "kv_format", "max_num_seqs"),
    S.OVERSIZED_BATCH: ("max_num_seqs",),
    S.UNFAIRNESS: ("fairness",),
    S.OUT_OF_MEMORY: ("kv_memory", "max_num_seqs", "max_batched_tokens"),
    S.BUDGET_TOO_SMALL: ("max_batched_tokens",),
}
"""The limits that bear on each symptom, by our names; a symptom that no limit bears on is
absent."""


def with_engine_limits(
    found: Sequence[Finding], started: EngineStarted | None
) -> tuple[Finding, ...]:
    """The findings; each with the limits that bear on it where the engine is not ours. A broken
    promise has the ones that bind."""
    if started is None or not started.is_attached:
        return tuple(found)
    return tuple(_with_limits(finding, started) for finding in found)


def _with_limits(finding: Finding, started: EngineStarted) -> Finding:
    names = LIMITS.get(finding.symptom) or tuple(one.setting for one in finding.promises)
    limits = (limit_of(started, name) for name in dict.fromkeys(names))
    return msgspec.structs.replace(finding, limits=tuple(one for one in limits if one is not None))
