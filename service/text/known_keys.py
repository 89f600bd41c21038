"""Keys of tokenizer_config.json and of a GGUF file's tokenizer that are ignored, and why.

The keys that are used are taken in `hf_tokenizer` and `gguf_tokenizer`; all others are refused.
"""

from __future__ import annotations

from service.model_files.strict_keys import IgnoredKey

_DESCRIBES = IgnoredKey("it describes the file, not the tokenizer")
_TRANSFORMERS = IgnoredKey("it is for classes of transformers; tokenizer.json has the rules")
_IN_RULES = IgnoredKey("tokenizer.json has it, and is used")
_NAMES_A_TOKEN = IgnoredKey("it only names a token of the vocabulary")
_BATCHES = IgnoredKey("prompts are neither padded nor truncated")
_EXACT = IgnoredKey("output is the exact bytes of its tokens")
_MORE_INPUTS = IgnoredKey("prompts are text only")

TOKENIZER_CONFIG: dict[str, IgnoredKey] = {
    **dict.fromkeys(
        (
            "name_or_path",
            "special_tokens_map_file",
            "tokenizer_file",
            "vocab_file",
            "vocab_size",
            "is_local",
        ),
        _DESCRIBES,
    ),
    **dict.fromkeys(
        (
            "tokenizer_class",
            "backend",
            "use_fast",
            "legacy",
            "from_slow",
            "model_input_names",
            "return_token_type_ids",
            "add_tokens_directly",
            "local_files_only",
        ),
        _TRANSFORMERS,
    ),
    **dict.fromkeys(
        ("add_prefix_space", "sp_model_kwargs", "do_lower_case", "trim_offsets", "errors"),
        _IN_RULES,
    ),
    **dict.fromkeys(
        (
            "unk_token",
            "pad_token",
            "sep_token",
            "cls_token",
            "mask_token",
            "image_token",
            "audio_token",
            "model_specific_special_tokens",
        ),
        _NAMES_A_TOKEN,
    ),
    **dict.fromkeys(
        (
            "model_max_length",
            "max_length",
            "max_len",
            "padding",
            "padding_side",
            "pad_to_multiple_of",
            "pad_token_type_id",
            "stride",
            "truncation",
            "truncation_side",
            "truncation_strategy",
        ),
        _BATCHES,
    ),
    **dict.fromkeys(("clean_up_tokenization_spaces", "spaces_between_special_tokens"), _EXACT),
    **dict.fromkeys(("processor_class", "tool_parser_type", "response_schema"), _MORE_INPUTS),
    "use_default_system_prompt": IgnoredKey("the chat template decides", only=(False,)),
    "split_special_tokens": IgnoredKey("special tokens stay whole", only=(False,)),
    "auto_map": IgnoredKey("code that comes with the model is not run", only=({},)),
}

GGUF_TOKENIZER: dict[str, IgnoredKey] = {
    **dict.fromkeys(
        (
            "tokenizer.ggml.unknown_token_id",
            "tokenizer.ggml.padding_token_id",
            "tokenizer.ggml.seperator_token_id",  # as the format spells it
            "tokenizer.ggml.separator_token_id",
            "tokenizer.ggml.cls_token_id",
            "tokenizer.ggml.mask_token_id",
            "tokenizer.ggml.prefix_token_id",
            "tokenizer.ggml.suffix_token_id",
            "tokenizer.ggml.middle_token_id",
            "tokenizer.ggml.fim_pre_token_id",
            "tokenizer.ggml.fim_suf_token_id",
            "tokenizer.ggml.fim_mid_token_id",
            "tokenizer.ggml.fim_pad_token_id",
            "tokenizer.ggml.fim_rep_token_id",
            "tokenizer.ggml.fim_sep_token_id",
        ),
        _NAMES_A_TOKEN,
    ),
    "tokenizer.ggml.token_type_count": _DESCRIBES,
    "tokenizer.ggml.added_tokens": _NAMES_A_TOKEN,
    "tokenizer.huggingface.json": IgnoredKey("the keys of tokenizer.ggml have the same"),
    "tokenizer.chat_templates": IgnoredKey("only the default template is used"),
    "tokenizer.ggml.add_eos_token": IgnoredKey("prompts have no end token", only=(False,)),
    "tokenizer.ggml.add_sep_token": IgnoredKey("prompts have no separator", only=(False,)),
    "tokenizer.ggml.remove_extra_whitespaces": IgnoredKey("spaces are kept", only=(False,)),
    "tokenizer.ggml.precompiled_charsmap": IgnoredKey("text is not normalised", only=([],)),
}
# named templates beside the default one
GGUF_TOKENIZER_PREFIXES = ("tokenizer.chat_template.",)
