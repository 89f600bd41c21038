"""Inputs to embed that are sent together weigh at their engine as what they are."""

from __future__ import annotations

import asyncio

from service.composition.clients.state import clients_state
from service.config.settings import GatewayConfig
from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.gateway.engine_client.output_queue import OutputQueue, ignore
from service.gateway.generation.choice import Choice
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.state import GatewayState
from service.gateway.generation.submitting import submit_all
from service.gateway.ingest.schemas import EmbeddingOptions, GenerationRequest
from service.gateway.processes.unwatched import only_timings
from service.text.dummy_tokenizer import dummy_tokenizer
from telemetry.facts.fleet.routing_records import RequestRouted
from telemetry.metrics.ingest_counts import IngestCounts
from tests.fleet.fleet_world import GatewayWorld, NodeWorld, run, steps, until
from tests.support.servers.scripted_engine import CONFIG

REQUEST = GenerationRequest(model=None, prompts=("",) * 40, embedding=EmbeddingOptions())
INPUTS, MEAN_TOKENS = 32, 3


def state_of(gateway: GatewayWorld) -> GatewayState:
    return clients_state(
        GatewayConfig(),
        CONFIG.model,
        dummy_tokenizer("tiny"),
        gateway.clock,
        IngestCounts(),
        lane=gateway.lane,
        engine=gateway.client,
        created_unix_s=0,
        views=only_timings(lambda ended: None),
        retry_after_s=lambda: 1,
        start_report=lambda: None,
        live_request_ids=set[str](),
    )


def part(gateway: GatewayWorld) -> list[Submit]:
    """Prompts of one and of five tokens; each wants one here, by which it ends."""
    return [
        Submit(
            seq_id=gateway.client.next_seq_id(),
            prompt=[7] * (5 if number % 2 else 1),
            max_tokens=1,
            sampling=SamplingParams(seed=number),
        )
        for number in range(INPUTS)
    ]


def test_inputs_to_embed_weigh_as_many_sequences_and_their_tokens_until_they_end() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            view = gateway.client._routing._router._book.by_name["n0"]
            state, outputs = state_of(gateway), OutputQueue(1000, ignore)
            recorder = RequestRecorder(gateway.lane, gateway.clock, "r")
            recorder.accepted({"path": "/v1/embeddings", "headers": []}, "embeddings", "")
            choices: list[Choice] = []
            await submit_all(state, recorder, outputs, part(gateway), REQUEST, choices)
            assert len(choices) == INPUTS
            assert (view.residents, view.context_tokens) == (INPUTS, INPUTS * MEAN_TOKENS)
            (routed,) = [one for one in gateway.lane.drain() if isinstance(one, RequestRouted)]
            assert (routed.prompt_tokens, routed.sequences) == (MEAN_TOKENS, INPUTS)

            await steps(node, 1, INPUTS)
            ended = 0
            async with asyncio.timeout(10):
                while ended < INPUTS:
                    ended += sum(one.end is not None for one in await outputs.get())
            await until(lambda: not view.residents, "none is there")
            (shown,) = gateway.client.links_view().engines
            assert shown.outstanding == 0
            await state.ingest.close()

    run(case)
