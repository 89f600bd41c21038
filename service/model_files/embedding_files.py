"""What a model's files say about embeddings: how states are pooled, whether they may be cut.

Sentence-transformers writes `modules.json`, which names the folder of the pooling and whether a
normalisation follows. What it names beyond that changes the vectors, and is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from service.config.model_ref import ModelKind, ModelRef
from service.config.setting import ConfigError
from service.engine.prompt_output import Pooling
from service.model_files.json_file import read_json, read_object
from service.model_files.strict_keys import IgnoredKey, StrictKeys

PoolingChoice = Literal["auto", "off", "last", "mean", "cls"]

_MODULES = {"Transformer", "Pooling", "Normalize"}
_MODES = {
    "lasttoken": Pooling.LAST, "mean_tokens": Pooling.MEAN, "cls_token": Pooling.CLS,
}  # fmt: skip
_MODE_PREFIX = "pooling_mode_"
_OFF = IgnoredKey("this pooling is not known", only=(False,))
_POOLING_KEYS = {
    **{f"{_MODE_PREFIX}{name}": _OFF for name in
       ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")},
    "word_embedding_dimension": IgnoredKey("the model's width decides"),
    "include_prompt": IgnoredKey("all tokens are pooled", only=(True,)),
}  # fmt: skip


class EmbeddingModel(msgspec.Struct, frozen=True, kw_only=True):
    """How embeddings are made. A `dimensions` of a request is allowed where the model was trained
    for it (Matryoshka): any number, or one of `sizes` where these are stated."""

    pooling: Pooling
    normalize: bool = False
    may_cut: bool = False
    sizes: tuple[int, ...] = ()


def embedding_model(model: ModelRef, wanted: PoolingChoice) -> EmbeddingModel | None:
    """By the files, or by `wanted`, which then replaces all that they say of pooling; None: no
    embeddings. Raises ConfigError."""
    if wanted == "off":
        return None
    folder = Path(model.path) if model.kind is ModelKind.HF_FOLDER else None
    may_cut, sizes = (False, ()) if folder is None else _matryoshka(folder / "config.json")
    if wanted != "auto":
        return EmbeddingModel(pooling=Pooling(wanted), may_cut=may_cut, sizes=sizes)
    if folder is None or not (folder / "modules.json").is_file():
        return None
    modules = _modules(folder / "modules.json")
    if "Pooling" not in modules:
        return None
    _refuse_default_prompt(folder / "config_sentence_transformers.json")
    return EmbeddingModel(
        pooling=_pooling(folder / modules["Pooling"] / "config.json"),
        normalize="Normalize" in modules,
        may_cut=may_cut,
        sizes=sizes,
    )


def _modules(path: Path) -> dict[str, str]:
    """Folders by the class of the module. Raises ConfigError for one that is not known."""
    stated = read_json(path)
    found: dict[str, str] = {}
    for module in stated if isinstance(stated, list) else [stated]:
        kind = str(module.get("type", "") if isinstance(module, dict) else module)
        name = kind.rpartition(".")[2]
        if not isinstance(module, dict) or name not in _MODULES or name in found:
            raise ConfigError(
                f"{path}: module {kind!r} is not known, and changes embeddings; --pooling "
                "last, mean or cls serves the pooled states without the modules"
            )
        place = str(module.get("path", ""))
        if ".." in place or Path(place).is_absolute():
            raise ConfigError(f"{path}: {place!r} is outside of the model's folder")
        found[name] = place
    return found


def _pooling(path: Path) -> Pooling:
    """The one mode that is on. Raises ConfigError."""
    keys = StrictKeys(path, read_object(path))
    on = [mode for name, mode in _MODES.items() if keys.flag(f"{_MODE_PREFIX}{name}")]
    keys.finish(_POOLING_KEYS)
    if len(on) != 1:
        raise ConfigError(f"{path}: {len(on)} ways of pooling are on; one is expected")
    return on[0]


def _refuse_default_prompt(path: Path) -> None:
    """A text that goes before every input would change embeddings."""
    if path.is_file() and read_object(path).get("default_prompt_name") is not None:
        raise ConfigError(
            f"{path}: default_prompt_name is not supported; remove it, and let clients send "
            "the prompt's text with their inputs"
        )


def _matryoshka(path: Path) -> tuple[bool, tuple[int, ...]]:
    """Whether embeddings may be cut, by the keys that vLLM reads too, and to which sizes."""
    stated = read_object(path) if path.is_file() else {}
    sizes = stated.get("matryoshka_dimensions") or ()
    if not isinstance(sizes, list | tuple) or not all(isinstance(n, int) for n in sizes):
        raise ConfigError(f"{path}: matryoshka_dimensions must be a list of numbers")
    return bool(sizes) or stated.get("is_matryoshka") is True, tuple(sizes)
