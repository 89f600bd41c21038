"""Keys of GGUF metadata that need not be obeyed, and why.

Those that are obeyed are taken by `gguf_reader` and by the file of each architecture, which may
name more that are harmless; what is in none of these places is refused by name. Keys of the
tokenizer are in `service.text.known_keys`.
"""

from __future__ import annotations

from service.model_files.strict_keys import IgnoredKey

_DESCRIBES = IgnoredKey("it describes the file, not the model")

GENERAL: dict[str, IgnoredKey] = {
    **dict.fromkeys(
        (
            "general.name",
            "general.author",
            "general.version",
            "general.organization",
            "general.basename",
            "general.finetune",
            "general.description",
            "general.quantized_by",
            "general.size_label",
            "general.parameter_count",
            "general.license",
            "general.url",
            "general.doi",
            "general.uuid",
            "general.repo_url",
            "general.tags",
            "general.languages",
            "general.datasets",
            "general.file_type",  # tensors say themselves what they are
            "general.quantization_version",
            "general.alignment",  # obeyed by `service.model_files.gguf_file`
        ),
        _DESCRIBES,
    ),
    "general.type": IgnoredKey("only whole models are loaded", only=("model",)),
    "split.count": IgnoredKey("a file that is one of several is not whole", only=(0, 1)),
    "split.no": _DESCRIBES,
    "split.tensors.count": _DESCRIBES,
}
GENERAL_PREFIXES = (
    "general.license.",
    "general.source.",
    "general.base_model.",
    "general.dataset.",
    "general.sampling.",  # what the authors recommend; a request states it
    "quantize.imatrix.",
)

# After the name of the architecture.
_OF_FAMILY: dict[str, IgnoredKey] = {
    "vocab_size": IgnoredKey("the embedding's rows decide"),
    "tensor_data_layout": _DESCRIBES,
    "rope.scaling.finetuned": _DESCRIBES,
    "expert_count": IgnoredKey("mixtures of experts are not known", only=(0,)),
    "expert_used_count": IgnoredKey("mixtures of experts are not known", only=(0,)),
    "use_parallel_residual": IgnoredKey("residuals are in a row", only=(False,)),
    "attention.causal": IgnoredKey("tokens see what is before them", only=(True,)),
    "attention.max_alibi_bias": IgnoredKey("positions are rotary", only=(0.0,)),
    "attention.clamp_kqv": IgnoredKey("nothing is clamped", only=(0.0,)),
    "rope.scale_linear": IgnoredKey("an old spelling of rope.scaling.factor", only=(1.0,)),
    "rope.scaling.attn_factor": IgnoredKey("attention is not scaled", only=(1.0,)),
    "rope.scaling.yarn_log_multiplier": IgnoredKey("YaRN's magnitude is its own", only=(0.0,)),
    "rope.scaling.yarn_ext_factor": IgnoredKey("YaRN blends wholly", only=(1.0,)),
    "rope.scaling.yarn_attn_factor": IgnoredKey("YaRN's magnitude is its own", only=(1.0,)),
}


def of_family(family: str) -> dict[str, IgnoredKey]:
    """All of a file of that architecture."""
    own = {f"{family}.{key}": harmless for key, harmless in _OF_FAMILY.items()}
    return {**GENERAL, **own}
