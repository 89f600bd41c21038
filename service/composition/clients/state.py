"""The parts that serve clients, alike in a server's only process and in each of several gateway
processes."""

from __future__ import annotations

from typing import Any

from service.config.settings import GatewayConfig, ModelRef
from service.gateway.generation.state import GatewayState
from service.gateway.generation.tool_results import CallTable
from service.gateway.ingest.pool import IngestPool
from service.gateway.ingest.prompting import BodyReader
from service.model_files.embedding_files import embedding_model
from service.text.reasoning import reasoning_format
from service.text.tokenizer import Tokenizer
from telemetry.facts.clock import Clock
from telemetry.metrics.ingest_counts import IngestCounts


def clients_state(
    config: GatewayConfig,
    model: ModelRef,
    tokenizer: Tokenizer,
    clock: Clock,
    counts: IngestCounts,
    **own: Any,
) -> GatewayState:
    """What the routes share; `own` are the fields in which processes differ. To be called on the
    event loop."""
    reasoning = reasoning_format(tokenizer, model.reasoning_format)
    named = model.name, model.defaults, clock, config.compat
    reader = BodyReader(tokenizer, *named, reasoning, model.tool_format)
    return GatewayState(
        config=config,
        clock=clock,
        tokenizer=tokenizer,
        ingest=IngestPool(reader, model, config.ingest_workers, counts),
        model=model.name,
        sampling_defaults=model.defaults,
        reasoning=reasoning,
        calls=CallTable(clock),
        embedding=embedding_model(model, config.pooling),
        **own,
    )
