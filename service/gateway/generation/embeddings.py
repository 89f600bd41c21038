"""Answers one request for embeddings: each input is a sequence without tokens.

Few of them are in the engine at a time: a request with two thousand inputs is no two thousand
requests to others, nor to the bounded queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from service.engine.inbox import Submit
from service.engine.prompt_output import Pooled, PromptOutput
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import ApiError, bad_request, error_of_end
from service.gateway.generation.choice import Choice
from service.gateway.generation.delivery import Delivery
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.state import GatewayState
from service.gateway.generation.submitting import submit_all
from service.gateway.ingest.prompting import PackedPrompt
from service.gateway.ingest.schemas import EmbeddingOptions, GenerationRequest
from service.model_files.embedding_files import EmbeddingModel
from telemetry.facts.engine_records import EngineStarted

AT_ONCE = 32  # sequences of one request


def pooled_output(
    wish: EmbeddingOptions, model: EmbeddingModel | None, started: EngineStarted
) -> PromptOutput:
    """What is read of each input. Raises ApiError where it cannot be had."""
    if model is None:
        raise bad_request(
            "this model has no embeddings: its files state no pooling; the server's --pooling "
            "last, mean or cls would choose one",
            code="no_embeddings",
        )
    if started.no_prompt_outputs:
        message = f"embeddings are not served: {started.no_prompt_outputs}"
        raise bad_request(message, code="no_embeddings")
    if wish.dimensions is not None:
        _check_dimensions(wish.dimensions, model, started)
    return PromptOutput(
        pooling=model.pooling, normalize=model.normalize, dimensions=wish.dimensions
    )


def _check_dimensions(wanted: int, model: EmbeddingModel, started: EngineStarted) -> None:
    width = None if started.shape is None else started.shape.hidden
    if wanted == width:
        return
    if not model.may_cut:
        raise _not_possible(f"this model's embeddings may not be cut; they have {width} numbers")
    if model.sizes and wanted not in model.sizes:
        shown = ", ".join(map(str, model.sizes))
        raise _not_possible(f"this model's embeddings may be cut to {shown}")
    if width is not None and wanted > width:
        raise _not_possible(f"this model's embeddings have {width} numbers")


def _not_possible(message: str) -> ApiError:
    return bad_request(message, "dimensions", "unsupported")


async def respond_embeddings(
    state: GatewayState,
    recorder: RequestRecorder,
    outputs: OutputQueue,
    delivery: Delivery,
    request: GenerationRequest,
    prompts: Sequence[PackedPrompt],
    submits: Iterable[Submit],
    choices: list[Choice],
) -> None:
    """Compute all inputs and send the answer. Raises ApiError, and Interrupted."""
    assert request.embedding is not None
    waiting = iter(submits)
    while part := list(islice(waiting, AT_ONCE)):
        await submit_all(state, recorder, outputs, part, request, choices)
        await _until_done(state, outputs, choices[-len(part) :])
    begin_ns = state.clock.now_ns()
    vectors = [_vector(choice) for choice in choices]
    data = await state.ingest.render_embeddings(vectors, request.embedding.base64)
    tokens = sum(prompt.tokens for prompt in prompts)
    body = {
        "object": "list",
        "data": msgspec.Raw(data),
        "model": request.model or state.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    recorder.detokenized(begin_ns)
    await delivery.send_response(msgspec.json.encode(body))


async def _until_done(state: GatewayState, outputs: OutputQueue, choices: Sequence[Choice]) -> None:
    by_id = {choice.seq_id: choice for choice in choices}
    while not all(choice.done for choice in choices):
        for emission in await outputs.get():
            by_id[emission.seq_id].accept(emission)
            if emission.end is not None:
                error = error_of_end(emission.end, state.retry_after_s, emission.detail)
                if error is not None:
                    raise error


def _vector(choice: Choice) -> bytes:
    found = choice.read[-1]
    assert isinstance(found, Pooled), "a sequence ended without its embedding"
    return found.values
