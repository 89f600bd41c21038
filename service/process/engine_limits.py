"""The limits of the scheduler, from the engine's settings and what was loaded."""

from __future__ import annotations

from service.config.settings import EngineConfig
from service.device.loader import LoadedEngine, choose_device
from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.kv.cpu_offload import Retention

_CPU_CEILING_TOKENS = 8192  # a GPU's memory is divided for the budget at the start


def limits_of(config: EngineConfig, loaded: LoadedEngine) -> Limits:
    on_cpu = choose_device(config.device).type == "cpu"
    return Limits(
        block_tokens=loaded.executor.block_tokens,
        blocks_total=loaded.executor.blocks_total,
        max_model_tokens=loaded.max_model_tokens,
        max_seqs=config.max_seqs,
        budget_tokens=config.step_tokens,
        auto_budget=config.max_batched_tokens is None,
        slo_order=config.order == "slo",
        refuse_late=config.refuse_late,
        budget_ceiling_tokens=_CPU_CEILING_TOKENS if on_cpu else 0,
        chunked_prefill=config.chunked_prefill,
        queue_limit_requests=config.queue_limit_requests,
        queue_limit_tokens=config.queue_limit_tokens,
        policy=Policy(config.fairness),
        ageing_ns=int(config.ageing_s * 1e9),
        tenant_max_seqs=config.tenant_max_seqs,
        tenant_queue_limit=config.tenant_queue_limit,
        itl_target_ns=_ns(config.itl_target_ms, 1e6),
        prefix_cache=config.prefix_cache,
        cache_identity=f"{config.model.kind} {config.model.path}; own tokenizer; "
        f"{loaded.backend.dtype}",
        draft_tokens=config.draft_tokens,
        adapter_bytes=config.lora_bytes or 0,
        max_adapters=config.max_adapters if config.lora_bytes else 0,
        host_slots=loaded.executor.host_slots,
        tile_rows=loaded.backend.tile_rows,
        retention=Retention(
            tenant_share=config.kv_offload_tenant_share, ttl_ns=_ns(config.kv_offload_ttl_s, 1e9)
        ),
    )


def _ns(value: float | None, factor: float) -> int | None:
    return None if value is None else int(value * factor)
