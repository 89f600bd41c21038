"""What routers and clients of other servers ask of a worker, with the names that those servers use.

A field that this server does not measure is absent; none is made up.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from service.config.settings import SamplingDefaults
from telemetry.facts.engine_records import EngineStarted
from telemetry.stats.snapshot import Snapshot

_GIB = 1 << 30
LOAD_SECTIONS = ("core", "disagg", "queues", "memory", "all")


class Version(Struct, kw_only=True):
    """The answer to `/version`, in vLLM's shape."""

    version: str


class ModelInfo(Struct, kw_only=True):
    """The answer to `/model_info`, in SGLang's shape. `model_path` is the served name: paths are
    the server's own."""

    model_path: str
    served_model_name: str
    is_generation: bool
    preferred_sampling_params: SamplingDefaults
    max_model_len: int | UnsetType = UNSET


class ServerInfo(ModelInfo, kw_only=True):
    """The answer to `/server_info`, in SGLang's shape; what the engine tells is there once it has
    started."""

    version: str
    status: Literal["ready", "not_ready"]
    dp_size: int = 1
    disaggregation_mode: Literal["null"] = "null"
    max_total_num_tokens: int | UnsetType = UNSET
    max_running_requests: int | UnsetType = UNSET
    max_prefill_tokens: int | UnsetType = UNSET
    page_size: int | UnsetType = UNSET


class QueueLoad(Struct, kw_only=True):
    """Sequences that wait."""

    waiting: int


class DisaggregationLoad(Struct, kw_only=True):
    """`null`: one server does both prefill and decode."""

    mode: Literal["null"] = "null"


class MemoryLoad(Struct, kw_only=True):
    """`token_capacity` is in tokens."""

    kv_cache_gb: float | UnsetType
    token_capacity: int


class WorkerLoad(Struct, kw_only=True):
    """One engine. `gen_throughput` is tokens/s over the last ten seconds, `cache_hit_rate` the
    share of prompt tokens that were reused since the start."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    gen_throughput: float
    cache_hit_rate: float
    max_running_requests: int
    dp_rank: int = 0
    disaggregation: DisaggregationLoad | UnsetType = UNSET
    queues: QueueLoad | UnsetType = UNSET
    memory: MemoryLoad | UnsetType = UNSET


class Loads(Struct, kw_only=True):
    """The answer to `/v1/loads`, in SGLang's shape; `loads` is empty before the engine has
    started."""

    version: str
    dp_rank_count: int
    loads: list[WorkerLoad]


def server_info(
    model: str, defaults: SamplingDefaults, version: str, started: EngineStarted | None, ready: bool
) -> ServerInfo:
    """`started` None: no engine has told its limits yet."""
    found = ServerInfo(
        model_path=model,
        served_model_name=model,
        is_generation=True,
        preferred_sampling_params=defaults,
        version=version,
        status="ready" if ready else "not_ready",
    )
    if started is not None:
        found.max_model_len = started.max_model_tokens
        found.max_total_num_tokens = started.blocks_total * started.block_tokens
        found.max_running_requests = started.max_seqs
        found.max_prefill_tokens = started.budget_tokens
        found.page_size = started.block_tokens
    return found


def worker_load(
    now: Snapshot, started: EngineStarted, sections: frozenset[str] = frozenset({"all"})
) -> WorkerLoad:
    """The load of an engine that runs."""
    capacity = now.blocks_total * started.block_tokens
    looked_up = now.totals.admitted_tokens
    found = WorkerLoad(
        num_running_reqs=now.running,
        num_waiting_reqs=now.waiting,
        num_total_reqs=now.running + now.waiting,
        num_used_tokens=now.blocks_used * started.block_tokens,
        max_total_num_tokens=capacity,
        token_usage=now.blocks_used / now.blocks_total if now.blocks_total else 0.0,
        gen_throughput=now.output_tokens_per_s,
        cache_hit_rate=now.totals.prefix_hit_tokens / looked_up if looked_up else 0.0,
        max_running_requests=started.max_seqs,
    )
    if sections & {"all", "disagg"}:
        found.disaggregation = DisaggregationLoad()
    if sections & {"all", "queues"}:
        found.queues = QueueLoad(waiting=now.waiting)
    if sections & {"all", "memory"}:
        shape = started.shape
        stored = UNSET if shape is None else capacity * shape.cell_bytes / _GIB
        found.memory = MemoryLoad(kv_cache_gb=stored, token_capacity=capacity)
    return found
