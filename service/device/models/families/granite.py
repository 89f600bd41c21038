"""IBM Granite 3 and the dense Granite 4: a Llama whose embeddings, residuals, attention and logits
are multiplied by numbers of the configuration. In a GGUF file rotary pairs lie side by side.
"""

from __future__ import annotations

from dataclasses import replace

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.spec import ModelSpec
from service.model_files.strict_keys import IgnoredKey, StrictKeys


def _read(config: StrictKeys, family: str) -> ModelSpec:
    return replace(
        read_spec(config, family),
        attention_scale=config.number("attention_multiplier", 1.0),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        logit_multiplier=1.0 / config.positive("logits_scaling", 1.0),
    )


def _read_gguf(config: GgufConfig, family: str) -> ModelSpec:
    """llama.cpp takes an attention scale of 0 for the usual one."""
    return replace(
        read_gguf_spec(config, family),
        attention_scale=config.number("attention.scale", 0.0) or None,
        embedding_multiplier=config.number("embedding_scale", 1.0),
        residual_multiplier=config.number("residual_scale", 1.0),
        logit_multiplier=1.0 / config.positive("logit_scale"),
    )


GRANITE = Architecture(
    family="granite",
    hf_name="GraniteForCausalLM",
    gguf_name="granite",
    read_config=_read,
    read_gguf=_read_gguf,
    gguf_interleaves_rope=True,
    ignored_gguf_keys={
        # llama.cpp does not rotate at all where it is false
        "granite.rope.scaling.finetuned": IgnoredKey("queries are rotated here", only=(True,)),
    },
)
