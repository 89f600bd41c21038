"""What each symptom needs to be seen, so that it can abstain where that is missing.

Our own engine records all of it. The adapter in another engine says what it cannot see
(`EngineStarted.unobserved`); some things no adapter sees. A symptom whose need is missing abstains:
that it is not found says nothing. What is still seen of it can still be found.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

from diagnosis.symptoms import Symptom

S = Symptom


class Need(StrEnum):
    """Something that is seen or not. The value is its name in `EngineStarted.unobserved`."""

    _value_: str
    words: str

    def __new__(cls, name: str, words: str) -> Self:
        found = str.__new__(cls, name)
        found._value_ = name
        found.words = words
        return found

    SAMPLING = "sampling", "the time of sampling"
    MASKS = "masks", "the time of masks"
    CLIENT_PAUSES = "client_pauses", "when a client does not read"
    ADAPTERS = "adapters", "loads and evictions of adapters"
    OUTPUT_VALIDITY = "output_validity", "whether outputs obey their constraint"
    STEP_FAILURES = "step_failures", "failed steps and their reason"
    STARTS = "starts", "how the engine's process starts"
    FRONT_END = "front_end", "the front end"
    ENGINE_HOST = "engine_host", "when the engine's process has a CPU"


NO_ADAPTER_SEES = frozenset(
    {
        Need.CLIENT_PAUSES,
        Need.ADAPTERS,
        Need.OUTPUT_VALIDITY,
        Need.STEP_FAILURES,
        Need.STARTS,
    }
)
"""What no adapter sees of an engine that others wrote."""


class Needs(NamedTuple):
    """What a symptom needs. `still` is what is seen of it without, `seems` the symptoms that it
    would look like then."""

    needs: tuple[Need, ...]
    still: str = ""
    seems: tuple[Symptom, ...] = ()


NEEDS: dict[Symptom, Needs] = {
    S.QUEUE_OVERLOAD: Needs(()),
    S.PREFILL_INTERFERENCE: Needs(()),
    S.LONG_PROMPTS: Needs(()),
    S.PREFIX_CACHE_COLD: Needs(()),
    S.KV_EXHAUSTION: Needs(()),
    S.KV_THRASH: Needs(()),
    S.OVERSIZED_BATCH: Needs(()),
    S.MEMORY_BANDWIDTH: Needs(()),
    S.THROTTLED: Needs(()),
    S.HOST_STALL: Needs(()),
    S.CPU_STARVATION: Needs(
        (Need.ENGINE_HOST,), seems=(S.THROTTLED, S.HOST_STALL, S.MEMORY_BANDWIDTH)
    ),
    S.INGEST_BACKLOG: Needs((Need.FRONT_END,)),
    S.GRAMMAR_COST: Needs((Need.MASKS,), "waits for a grammar", (S.MEMORY_BANDWIDTH, S.THROTTLED)),
    S.ADAPTER_CHURN: Needs((Need.ADAPTERS,)),
    S.INVALID_OUTPUT: Needs((Need.OUTPUT_VALIDITY,), "answers that are cut at their length"),
    S.SLOW_CLIENT: Needs(
        (Need.CLIENT_PAUSES, Need.FRONT_END), "the time after the last token, with a front end"
    ),
    S.CANCELLATION_LEAK: Needs((Need.FRONT_END,)),
    S.UNFAIRNESS: Needs((Need.FRONT_END,)),
    S.HEAVY_SAMPLING: Needs(
        (Need.SAMPLING,), "more choices a request", (S.MEMORY_BANDWIDTH, S.THROTTLED)
    ),
    S.OUT_OF_MEMORY: Needs((Need.STEP_FAILURES,)),
    S.ENGINE_HUNG: Needs(()),
    S.STEP_FAILURE: Needs((Need.STEP_FAILURES,), "errors of the GPU's driver"),
    S.LOAD_FAILURE: Needs((Need.STARTS,)),
    S.BUDGET_TOO_SMALL: Needs(()),
    S.TELEMETRY_DEGRADED: Needs(()),
    S.SLO_MISSED: Needs((Need.FRONT_END,), "the time in the engine core"),
}
