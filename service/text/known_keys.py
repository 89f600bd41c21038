"""Keys of tokenizer_config.json and of a GGUF file's tokenizer that need not be obeyed, and why.

Those that are obeyed are taken in `service.text.hf_tokenizer` and `service.text.gguf_tokenizer`;
what is in neither place is refused by name.
"""

from __future__ import annotations

from service.model_files.stated import Harmless

_DESCRIBES = Harmless("it describes the file, not the tokenizer")
_TRANSFORMERS = Harmless("it is about transformers' own classes; tokenizer.json has the rules")
_IN_RULES = Harmless("tokenizer.json states it and is what is obeyed")
_NAMES_A_TOKEN = Harmless("it only names a token of the vocabulary")
_BATCHES = Harmless("prompts are neither padded nor cut")
_EXACT = Harmless("output is the exact bytes of its tokens")
_MORE_INPUTS = Harmless("prompts are text; nothing else is put in")

TOKENIZER_CONFIG: dict[str, Harmless] = {
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
    "use_default_system_prompt": Harmless("the chat template decides", only=(False,)),
    "split_special_tokens": Harmless("special tokens stay whole", only=(False,)),
    "auto_map": Harmless("code that comes with the model is not run", only=({},)),
}

GGUF_TOKENIZER: dict[str, Harmless] = {
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
    "tokenizer.huggingface.json": Harmless("the keys of tokenizer.ggml say the same"),
    "tokenizer.chat_templates": Harmless("only the default template is used"),
    "tokenizer.ggml.add_eos_token": Harmless("prompts have no end token", only=(False,)),
    "tokenizer.ggml.add_sep_token": Harmless("prompts have no separator", only=(False,)),
    "tokenizer.ggml.remove_extra_whitespaces": Harmless("spaces are kept", only=(False,)),
    "tokenizer.ggml.precompiled_charsmap": Harmless("text is not normalised", only=([],)),
}
# named templates beside the default one
GGUF_TOKENIZER_PREFIXES = ("tokenizer.chat_template.",)
