"""Every route of a server with an engine of its own in words and types, for the OpenAPI document; a
test compares it with the app's. Those of any server are in `view_table`."""

from __future__ import annotations

from typing import Any

from service.gateway.ingest.embedding_bodies import EmbeddingBody
from service.gateway.ingest.request_types import ChatBody, CompletionBody
from service.gateway.ingest.responses_body import ResponsesBody
from service.gateway.ingest.token_bodies import (
    DetokenizeBody,
    Detokenized,
    TokenizeBody,
    Tokenized,
)
from service.gateway.routes.adapter_routes import LoadLora, UnloadLora
from service.gateway.routes.limits_route import LimitsChange
from service.gateway.routes.ops import TelemetryChange
from service.gateway.routes.types import peer_types as peers
from service.gateway.routes.types import response_types as answers
from service.gateway.routes.types.query_types import LoadsQuery, ProfileQuery
from service.gateway.routes.types.responses_types import Response, ResponseEvent
from service.gateway.routes.view_table import (
    DEBUG_VIEWS,
    EVENTS,
    JSON,
    OPERATIONS,
    REQUEST_HEADERS,
    REQUEST_ID_PARAMETER,
    Description,
    view,
)
from telemetry.facts.limits import LimitsView

TEXT = "text/plain"


def _generation(path: str, summary: str, body: type, whole: type, chunk: type) -> Description:
    return Description(
        method="POST",
        path=path,
        summary=summary,
        tag="generation",
        answer={JSON: whole, EVENTS: chunk},
        body=body,
        headers=tuple(REQUEST_HEADERS),
        errors=(404, 409),
    )


GENERATION = [
    _generation(
        "/v1/chat/completions", "Answer a conversation", ChatBody,
        answers.ChatCompletion, answers.ChatCompletionChunk,
    ),
    _generation(
        "/v1/completions", "Complete a text", CompletionBody,
        answers.Completion, answers.Completion,
    ),
    _generation(
        "/v1/responses", "Answer a conversation with typed items, storing nothing", ResponsesBody,
        Response, ResponseEvent,
    ),
    Description(
        method="POST", path="/v1/embeddings", summary="Vectors of texts", tag="generation",
        answer={JSON: answers.Embeddings}, body=EmbeddingBody, headers=tuple(REQUEST_HEADERS),
        errors=(404, 409),
    ),
    Description(
        method="DELETE",
        path="/v1/requests/{request_id}",
        summary="Cancel a live request",
        tag="generation",
        answer={JSON: answers.Deleted},
        errors=(404,),
        path_parameters=REQUEST_ID_PARAMETER,
    ),
    Description(
        method="GET", path="/v1/models", summary="The served model and its adapters",
        tag="generation",
        answer={JSON: answers.Models},
    ),
    Description(
        method="GET", path="/v1/models/{name}", summary="The model of that name", tag="generation",
        answer={JSON: answers.Model}, errors=(404,),
        path_parameters={"name": "As in `/v1/models`; it may contain slashes."},
    ),
    Description(
        method="POST", path="/v1/load_lora_adapter", summary="Load a LoRA adapter", tag="debug",
        answer={TEXT: None}, body=LoadLora, errors=(403, 404, 409, 504),
    ),
    Description(
        method="POST", path="/v1/unload_lora_adapter", summary="Unload a LoRA adapter",
        tag="debug", answer={TEXT: None}, body=UnloadLora, errors=(403, 404, 409, 504),
    ),
]  # fmt: skip

TOKENS = [
    Description(
        method="POST", path="/tokenize", summary="Token ids of a text or a conversation",
        tag="tokens", answer={JSON: Tokenized}, body=TokenizeBody, errors=(404,),
    ),
    Description(
        method="POST", path="/detokenize", summary="The text of token ids",
        tag="tokens", answer={JSON: Detokenized}, body=DetokenizeBody, errors=(404,),
    ),
]  # fmt: skip


def _peer(path: str, summary: str, answer: type | None, **more: Any) -> Description:
    return Description(
        method="GET", path=path, summary=summary, tag="peers", answer={JSON: answer}, **more
    )


PEERS = [
    Description(
        method="GET", path="/ping", summary="Whether requests are accepted, as `/ready`",
        tag="peers", answer={},
    ),
    _peer("/version", "The server's version, as vLLM says it", peers.Version),
    _peer("/server_info", "Limits and version, as SGLang says them", peers.ServerInfo),
    _peer("/get_server_info", "The same under its older name", peers.ServerInfo),
    _peer("/model_info", "The served model, as SGLang says it", peers.ModelInfo),
    _peer("/get_model_info", "The same under its older name", peers.ModelInfo),
    _peer(
        "/v1/loads", "How loaded the engine is, as SGLang says it", peers.Loads,
        query=LoadsQuery, errors=(400,),
    ),
    _peer(
        "/loads", "The same under another name", peers.Loads, query=LoadsQuery, errors=(400,)
    ),
]  # fmt: skip

DEBUG = [
    *DEBUG_VIEWS,
    view("/debug/startup", "Duration of the start, by stage"),
    view("/debug/telemetry", "Whether facts are recorded", answer=answers.Recording),
    view("/debug/limits", "The engine's limits in force, and their changes", answer=LimitsView),
    Description(
        method="PUT", path="/debug/limits", summary="Change limits while the engine runs",
        tag="debug", answer={JSON: LimitsView}, body=LimitsChange, errors=(504,),
    ),
    Description(
        method="POST", path="/debug/cache/flush", summary="Empty the prefix cache", tag="debug",
        answer={JSON: answers.Flushed},
    ),
    Description(
        method="POST", path="/debug/profile", summary="A kernel profile of the next steps",
        tag="debug", answer={JSON: answers.View}, query=ProfileQuery, errors=(400, 409),
    ),
    Description(
        method="PUT", path="/debug/telemetry", summary="Turn recording on or off", tag="debug",
        answer={JSON: answers.Recording}, body=TelemetryChange, errors=(409,),
    ),
]  # fmt: skip

DESCRIPTIONS = [*GENERATION, *TOKENS, *OPERATIONS, *PEERS, *DEBUG]
