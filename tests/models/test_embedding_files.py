"""What files say of embeddings: obeyed, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.config.setting import ConfigError
from service.config.settings import ModelKind, ModelRef
from service.engine.prompt_output import Pooling
from service.gateway.errors import ApiError
from service.gateway.generation.embeddings import pooled_output
from service.gateway.ingest.schemas import EmbeddingOptions
from service.model_files.embedding_files import EmbeddingModel, embedding_model
from telemetry.facts.engine_start import ModelShape
from tests.support.worlds.metrics_world import engine_started

SHAPE = ModelShape(2, 64, 64, 32, 128, 300, 2, 512)
TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


def folder_of(
    tmp_path: Path, modules: list[dict[str, Any]], config: dict[str, Any], **pooling: Any
) -> ModelRef:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return ModelRef(kind=ModelKind.HF_FOLDER, path=str(tmp_path), name="m")


def published(**changes: Any) -> dict[str, Any]:
    """The pooling of Qwen3-Embedding, as published."""
    return {
        "word_embedding_dimension": 1024, "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False, "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": True, "include_prompt": True, **changes,
    }  # fmt: skip


def test_the_pooling_of_the_files_is_obeyed(tmp_path: Path) -> None:
    config = {"is_matryoshka": True, "matryoshka_dimensions": [8, 16]}
    model = folder_of(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], config, **published())

    assert embedding_model(model, "auto") == EmbeddingModel(
        pooling=Pooling.LAST, normalize=True, may_cut=True, sizes=(8, 16)
    )
    assert embedding_model(model, "off") is None
    flagged = embedding_model(model, "mean")
    assert flagged is not None
    assert (flagged.pooling, flagged.normalize) == (Pooling.MEAN, False)


def test_a_model_that_states_nothing_has_no_embeddings(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    folder = ModelRef(kind=ModelKind.HF_FOLDER, path=str(tmp_path), name="m")
    dummy = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="d")

    assert embedding_model(folder, "auto") is None
    assert embedding_model(dummy, "auto") is None
    assert embedding_model(dummy, "cls") == EmbeddingModel(pooling=Pooling.CLS)


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ([TRANSFORMER, POOLING, DENSE], published(), "Dense"),
        ([TRANSFORMER, POOLING], published(pooling_mode_max_tokens=True), "max_tokens"),
        ([TRANSFORMER, POOLING], published(pooling_mode_mean_tokens=True), "2 ways"),
        ([TRANSFORMER, POOLING], published(pooling_mode_lasttoken=False), "0 ways"),
        ([TRANSFORMER, POOLING], published(include_prompt=False), "include_prompt"),
        ([TRANSFORMER, POOLING], published(colour=1), "colour"),
        ([TRANSFORMER, {**POOLING, "path": "../../x"}], published(), "outside"),
    ],
)
def test_what_would_change_vectors_is_refused_by_name(
    tmp_path: Path, modules: list[dict[str, Any]], pooling: dict[str, Any], said: str
) -> None:
    model = folder_of(tmp_path, modules, {}, **pooling)
    with pytest.raises(ConfigError, match=said):
        embedding_model(model, "auto")


def test_a_prompt_before_every_input_is_refused(tmp_path: Path) -> None:
    model = folder_of(tmp_path, [TRANSFORMER, POOLING], {}, **published())
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "Q: "}, "default_prompt_name": None}))
    assert embedding_model(model, "auto") is not None

    path.write_text(json.dumps({"prompts": {"query": "Q: "}, "default_prompt_name": "query"}))
    with pytest.raises(ConfigError, match="default_prompt_name"):
        embedding_model(model, "auto")


@pytest.mark.parametrize(
    ("model", "dimensions", "allowed"),
    [
        (EmbeddingModel(pooling=Pooling.LAST), 8, False),
        (EmbeddingModel(pooling=Pooling.LAST, may_cut=True), 8, True),
        (EmbeddingModel(pooling=Pooling.LAST, may_cut=True, sizes=(16,)), 8, False),
        (EmbeddingModel(pooling=Pooling.LAST, may_cut=True, sizes=(16,)), 16, True),
        (EmbeddingModel(pooling=Pooling.LAST, may_cut=True), 1 << 20, False),
    ],
)
def test_vectors_are_cut_only_where_the_model_was_trained_for_it(
    model: EmbeddingModel, dimensions: int, allowed: bool
) -> None:
    wish = EmbeddingOptions(dimensions=dimensions)
    started = msgspec.structs.replace(engine_started(), shape=SHAPE)
    if allowed:
        assert pooled_output(wish, model, started).dimensions == dimensions
        return
    with pytest.raises(ApiError) as caught:
        pooled_output(wish, model, started)
    assert caught.value.param == "dimensions"
