"""Keys of config.json and generation_config.json that need not be obeyed, and why.

Those that are obeyed are taken by `config_reader` and by the file of each architecture, which may
name more that are harmless; what is in none of these places is refused by name.
"""

from __future__ import annotations

from service.model_files.strict_keys import IgnoredKey

_DESCRIBES = IgnoredKey("it describes the file, not the model")
_TRAINING = IgnoredKey("it is of training")
_OUTPUTS = IgnoredKey("it is about what transformers returns")
_KERNELS = IgnoredKey("it chooses how transformers computes, not what")
_TASKS = IgnoredKey("it is of other tasks than generating text")
_TOKENIZER_KNOWS = IgnoredKey("the tokenizer's own files state it")
_REQUEST_SAYS = IgnoredKey("a request states it, or gets the default of the API")
_SEARCH = IgnoredKey("beams are a request's business, and none can be asked for here")
_SPEEDS_UP = IgnoredKey("it is about speed in transformers")


def _off(what: str) -> IgnoredKey:
    return IgnoredKey(f"{what} cannot be switched on here", only=(False, 0, "", [], {}))


# Of generation_config.json, and of a config.json that older versions wrote them into.
GENERATION: dict[str, IgnoredKey] = {
    **dict.fromkeys(
        (
            "max_length",
            "max_new_tokens",
            "min_length",
            "min_new_tokens",
            "max_time",
            "do_sample",
            "typical_p",
            "top_h",
            "num_return_sequences",
            # these five are a request's defaults (`service.model_files.model_store`)
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
        ),
        _REQUEST_SAYS,
    ),
    **dict.fromkeys(
        (
            "num_beams",
            "num_beam_groups",
            "early_stopping",
            "length_penalty",
            "diversity_penalty",
            "constraints",
        ),
        _SEARCH,
    ),
    **dict.fromkeys(
        (
            "output_attentions",
            "output_hidden_states",
            "output_scores",
            "output_logits",
            "return_dict_in_generate",
            "remove_invalid_values",
            "renormalize_logits",
            "token_healing",
            "low_memory",
        ),
        _OUTPUTS,
    ),
    **dict.fromkeys(
        (
            "use_mtp",
            "use_cache",
            "cache_implementation",
            "cache_config",
            "max_cache_len",
            "is_assistant",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "assistant_confidence_threshold",
            "prompt_lookup_num_tokens",
            "max_matching_ngram_size",
            "assistant_early_exit",
            "assistant_lookbehind",
            "target_lookbehind",
            "assistant_ensemble_weight",
            "speculation_type",
            "compile_config",
            "disable_compile",
            "continuous_batching_config",
            "prefill_chunk_size",
        ),
        _SPEEDS_UP,
    ),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), _TOKENIZER_KNOWS),
    **dict.fromkeys(("transformers_version", "_from_model_config"), _DESCRIBES),
    "decoder_start_token_id": _TASKS,
    "epsilon_cutoff": _off("this way to draw tokens"),
    "eta_cutoff": _off("this way to draw tokens"),
    "penalty_alpha": _off("contrastive search"),
    "dola_layers": _off("this way to draw tokens"),
    "guidance_scale": IgnoredKey("guidance cannot be switched on here", only=(1, 1.0)),
    "watermarking_config": _off("a watermark"),
    "encoder_repetition_penalty": IgnoredKey("there is no encoder", only=(1, 1.0)),
    "encoder_no_repeat_ngram_size": _off("a ban on repetitions"),
    "no_repeat_ngram_size": _off("a ban on repetitions"),
    "bad_words_ids": _off("a list of banned words"),
    "force_words_ids": _off("a list of forced words"),
    "sequence_bias": _off("a bias for sequences"),
    "forced_bos_token_id": _off("a forced token"),
    "forced_eos_token_id": _off("a forced token"),
    "exponential_decay_length_penalty": _off("a penalty for length"),
    "suppress_tokens": _off("a list of banned tokens"),
    "begin_suppress_tokens": _off("a list of banned tokens"),
    "stop_strings": _off("a stop string of the model's own"),
}

# Of config.json only.
CONFIG: dict[str, IgnoredKey] = {
    **GENERATION,
    **dict.fromkeys(
        (
            "_name_or_path",
            "_commit_hash",
            "model_type",  # `architectures` decides
            "torch_dtype",  # tensors say themselves what they are
            "dtype",
            "is_llama_config",
            "transformers.js_config",
            "unsloth_fixed",
            "unsloth_version",
            "vocab_file",
            "tokenizer_class",
            "prefix",
            # obeyed by `service.model_files.embedding_files`
            "is_matryoshka",
            "matryoshka_dimensions",
        ),
        _DESCRIBES,
    ),
    **dict.fromkeys(
        (
            "initializer_range",
            "attention_dropout",
            "hidden_dropout",
            "embd_pdrop",
            "resid_pdrop",
            "attn_pdrop",
            "z_loss_coefficient",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(
        (
            "return_dict",
            "torchscript",
            "chunk_size_feed_forward",
            "pruned_heads",
            "id2label",
            "label2id",
            "problem_type",
            "finetuning_task",
            "task_specific_params",
        ),
        _OUTPUTS,
    ),
    **dict.fromkeys(
        (
            "pretraining_tp",  # the same products in slices
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_attn_implementation_internal",
            "_experts_implementation_internal",
            "attn_implementation",
            "_flash_attn_2_enabled",
            "use_flash_attention",
            "use_bfloat16",
            "tf_legacy_loss",
            "gradient_checkpointing",
        ),
        _KERNELS,
    ),
    **dict.fromkeys(("sep_token_id", "unk_token_id"), _TOKENIZER_KNOWS),
    "is_encoder_decoder": _off("an encoder"),
    "is_decoder": IgnoredKey("every model here is a decoder"),
    "add_cross_attention": _off("attention to another text"),
    "cross_attention_hidden_size": _off("attention to another text"),
    "tie_encoder_decoder": _off("an encoder"),
    "hidden_act": IgnoredKey("the feed-forward networks use SiLU", only=("silu", "swish")),
    "mlp_bias": IgnoredKey("feed-forward networks have no biases here", only=(False,)),
    "partial_rotary_factor": IgnoredKey("heads are rotated whole", only=(1, 1.0)),
    "rope_interleaved": IgnoredKey("rotary pairs are halves apart", only=(False,)),
    "use_mrope": IgnoredKey("positions are of one text", only=(False,)),
    "auto_map": _off("code that comes with the model"),
    "compression_config": _off("this quantisation"),
}

# Within rope_scaling or rope_parameters.
ROPE: dict[str, IgnoredKey] = {
    "partial_rotary_factor": IgnoredKey("heads are rotated whole", only=(1, 1.0)),
}
