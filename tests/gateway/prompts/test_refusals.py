"""Back ends that cannot read prompts say so by name, before anything is computed."""

from __future__ import annotations

import msgspec
import pytest

from service.engine.prompt_output import Pooling, PromptOutput
from service.gateway.errors import ApiError
from service.gateway.generation.embeddings import pooled_output
from service.gateway.generation.submitting import wanted_of_prompts
from service.gateway.ingest.schemas import EmbeddingOptions, GenerationRequest
from service.model_files.embedding_files import EmbeddingModel
from tests.support.worlds.metrics_world import engine_started

ABLE = engine_started()
UNABLE = msgspec.structs.replace(ABLE, no_prompt_outputs="this graph gives logits only")
SCORED = GenerationRequest(model=None, prompts=("a",), prompt_logprobs=2)
ECHOED = GenerationRequest(model=None, prompts=("a",), echo=True, logprobs=0)


@pytest.mark.parametrize(("request_", "param"), [(SCORED, "prompt_logprobs"), (ECHOED, "echo")])
def test_scores_are_refused_with_the_reason(request_: GenerationRequest, param: str) -> None:
    with pytest.raises(ApiError, match="logits only") as caught:
        wanted_of_prompts(request_, UNABLE)

    assert (caught.value.status, caught.value.param) == (400, param)
    assert wanted_of_prompts(request_, ABLE) == PromptOutput(logprobs=request_.prompt_scores)


def test_an_echo_without_scores_needs_no_scores() -> None:
    plain = GenerationRequest(model=None, prompts=("a",), echo=True, max_tokens=0)

    assert wanted_of_prompts(plain, UNABLE) is None


def test_embeddings_are_refused_with_the_reason() -> None:
    model = EmbeddingModel(pooling=Pooling.MEAN)
    with pytest.raises(ApiError, match="logits only") as caught:
        pooled_output(EmbeddingOptions(), model, UNABLE)

    assert caught.value.code == "no_embeddings"
    assert pooled_output(EmbeddingOptions(), model, ABLE) == PromptOutput(pooling=Pooling.MEAN)
