"""Which model is served: what is asked for, and what was found on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from service.config.setting import Group, setting

ToolFormatName = Literal[
    "auto", "hermes", "llama3", "mistral", "mistral-args", "mistral-call-id", "smollm2"
]
ReasoningName = Literal["auto", "off", "think", "mistral", "seed"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for; `service.model_files.model_store` makes a `ModelRef` of it."""

    model: Annotated[
        str | None,
        setting(
            "--model",
            Group.MODEL,
            "a .gguf file, a Hugging Face folder, a hub name (org/name) or dummy:<shape>",
            unset="SmolLM2-135M-Instruct, fetched at first use",
            min_length=1,
        ),
    ] = None
    served_model_name: Annotated[
        str | None,
        setting(
            "--served-model-name",
            Group.MODEL,
            "the name that clients use for the model",
            unset="the name of the file, the folder or the hub entry",
            min_length=1,
        ),
    ] = None
    reasoning_format: Annotated[
        ReasoningName,
        setting(
            "--reasoning-format",
            Group.MODEL,
            "the markers around a model's reasoning, which becomes a field of its own in answers: "
            "think is <think>, mistral [THINK], seed <seed:think>; auto: what the chat template "
            "and the vocabulary have; off: reasoning is a part of the text",
        ),
    ] = "auto"
    tool_format: Annotated[
        ToolFormatName,
        setting(
            "--tool-format",
            Group.MODEL,
            "how the model writes calls of functions; auto: the way of its chat template, or "
            "Hermes' way where that knows no tools",
        ),
    ] = "auto"


class ModelKind(StrEnum):
    """Where weights and tokenizer come from."""

    GGUF = "gguf"
    HF_FOLDER = "hf_folder"
    DUMMY = "dummy"


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling where a request states none; a model's authors may recommend other values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is present on this machine.

    `path` is the .gguf file or the Hugging Face folder; for a dummy it is the shape's
    name. `name` is what clients call it.
    """

    kind: ModelKind
    path: str
    name: str
    defaults: SamplingDefaults = SamplingDefaults()
    reasoning_format: ReasoningName = "auto"
    tool_format: ToolFormatName = "auto"
