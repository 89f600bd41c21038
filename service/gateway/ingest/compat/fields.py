"""The table: each field that a client or router of another dialect may send, as part of the types
that bodies are parsed by.

A field that the server has itself (`request_types`) is not here, whoever invented it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from service.gateway.http import limits
from service.gateway.ingest.compat.dialects import (
    BOTH,
    OPENAI,
    SGLANG,
    VLLM,
    Dialect,
    accepted,
    honoured,
    refused,
)

Name = Annotated[
    str,
    Meta(
        pattern=f"^[A-Za-z0-9._-]{{1,{limits.REQUEST_ID_CHARACTERS.value}}}$",
        max_length=limits.REQUEST_ID_CHARACTERS.value,
    ),
]
Salt = Annotated[str, Meta(min_length=1, max_length=limits.SALT_CHARACTERS.value)]
Source = Annotated[str, Meta(min_length=1, max_length=limits.GRAMMAR_CHARACTERS.value)]
Hint = Annotated[str, Meta(max_length=limits.USER_CHARACTERS.value)]
PromptTokens = Annotated[int, Meta(ge=-1, le=limits.TOKENS.value)]
ChunkTokens = Annotated[int, Meta(ge=1, le=limits.TOKENS.value)]
NotTrue = Annotated[bool, Meta(extra_json_schema={"const": False})]
OnlyTrue = Annotated[bool, Meta(extra_json_schema={"const": True})]
Nothing = Annotated[list[Any], Meta(max_length=0)]
NoEntries = Annotated[dict[Annotated[str, Meta(max_length=0)], None], Meta(max_length=0)]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
CacheRetention = Literal["in_memory", "in-memory", "24h"]
One = Annotated[float, Meta(ge=1, le=1)]

# fields of others that the server has itself, under every setting (`request_types`)
OWN = {
    Dialect.VLLM: (
        "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens",
        "prompt_logprobs", "echo", "add_generation_prompt", "continue_final_message",
        "chat_template_kwargs", "documents", "include_reasoning", "thinking_token_budget",
        "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice",
        "priority", "cache_salt",
    ),
    Dialect.SGLANG: (
        "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens",
        "continue_final_message", "chat_template_kwargs", "priority", "cache_salt",
    ),
}  # fmt: skip

_NO_MEDIA = "the server takes text only"
_NO_TRANSFER = (
    "clients cannot steer the transfer of KV: in a fleet the gateway chooses where a prompt is "
    "computed"
)
_NO_RANKS = "it has no data parallel ranks to choose from"
_NO_HIDDEN = "it gives out texts, tokens and log-probabilities, nothing of the model's inside"
_NO_BEAMS = "it samples, and searches no beams"
_NO_CODE = "a client may not bring code"
_FINE_ALREADY = "there is nothing to choose: bytes of tokens are joined as they are"


class NoTransfer(Struct, forbid_unknown_fields=True, kw_only=True):
    """The parameters with which a router says that nothing is to be transferred."""

    do_remote_decode: NotTrue | None = None
    do_remote_prefill: NotTrue | None = None
    remote_engine_id: None = None
    remote_request_id: None = None
    remote_block_ids: Nothing | None = None
    remote_host: None = None
    remote_port: None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a switch that is on."""
        if self.do_remote_decode or self.do_remote_prefill:
            raise ValueError(_NO_TRANSFER)


class ForeignFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of other dialects, on both generation routes."""

    service_tier: Annotated[
        ServiceTier | None,
        honoured(OPENAI, "the answer says `default`, the one tier that there is"),
    ] = None
    include_stop_str_in_output: Annotated[
        bool | None, honoured(VLLM, "the text that stopped it stays in the output")
    ] = None
    no_stop_trim: Annotated[bool | None, honoured(SGLANG, "as `include_stop_str_in_output`")] = None
    skip_special_tokens: Annotated[
        bool | None, honoured(BOTH, "false: control tokens are part of the text")
    ] = None
    add_special_tokens: Annotated[
        bool | None,
        honoured(VLLM, "whether a prompt gets its BOS; chat has it from its template"),
    ] = None
    truncate_prompt_tokens: Annotated[
        PromptTokens | None,
        honoured(VLLM, "so many tokens of the prompt are kept; -1: as many as fit"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None,
        honoured(VLLM, "where `truncate_prompt_tokens` cuts; left unless told otherwise"),
    ] = None
    return_token_ids: Annotated[
        bool | None, honoured(BOTH, "token ids of prompt and output, beside the text")
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, honoured(VLLM, "log-probabilities name tokens `token_id:N`")
    ] = None
    request_id: Annotated[
        Name | None,
        honoured(VLLM, "the `id` of the answer; the header `x-request-id` names the request"),
    ] = None
    rid: Annotated[Name | None, honoured(SGLANG, "as `request_id`")] = None
    extra_key: Annotated[
        Salt | None, honoured(SGLANG, "a second `cache_salt`: no reuse across different ones")
    ] = None
    regex: Annotated[Source | None, honoured(SGLANG, "as `structured_outputs.regex`")] = None
    ebnf: Annotated[Source | None, honoured(SGLANG, "as `structured_outputs.grammar`")] = None
    json_schema: Annotated[
        Source | None, honoured(SGLANG, "a schema as text, as `structured_outputs.json`")
    ] = None

    prompt_cache_retention: Annotated[
        CacheRetention | None,
        accepted(OPENAI, "what is kept is the server's choice, and no answer hangs on it"),
    ] = None
    spaces_between_special_tokens: Annotated[bool | None, accepted(BOTH, _FINE_ALREADY)] = None
    detokenize: Annotated[
        bool | None, accepted(VLLM, "the text comes whether or not it was asked for")
    ] = None
    session_id: Annotated[
        Hint | None, accepted(BOTH, "a hint for routers; a prefix is found by its text")
    ] = None
    stream_interval: Annotated[
        ChunkTokens | None, accepted(VLLM, "a chunk is what a step makes; the text is the same")
    ] = None
    guided_decoding_backend: Annotated[
        Hint | None, accepted(VLLM, "which library compiles a constraint changes no rule of it")
    ] = None

    separate_reasoning: Annotated[
        OnlyTrue | None, refused(SGLANG, "reasoning is a field of its own", wrong=False)
    ] = None
    stream_reasoning: Annotated[
        OnlyTrue | None, refused(SGLANG, "reasoning comes as it is made", wrong=False)
    ] = None
    use_beam_search: Annotated[NotTrue | None, refused(VLLM, _NO_BEAMS)] = None
    length_penalty: Annotated[One | None, refused(VLLM, _NO_BEAMS)] = None
    early_stopping: Annotated[NotTrue | None, refused(VLLM, _NO_BEAMS)] = None
    watermarking: Annotated[NotTrue | None, refused(VLLM, "it marks no texts")] = None
    bad_words: Annotated[Nothing | None, refused(VLLM, "use `logit_bias` for single tokens")] = None
    allowed_token_ids: Annotated[
        None, refused(VLLM, "use `structured_outputs` or `logit_bias`")
    ] = None
    logprob_token_ids: Annotated[
        None, refused(VLLM, "log-probabilities are of the most likely tokens")
    ] = None
    repetition_detection: Annotated[
        None, refused(VLLM, "nothing ends a text for repeating itself")
    ] = None
    guided_whitespace_pattern: Annotated[
        None, refused(VLLM, "put the white space into the grammar")
    ] = None
    return_prompt_text: Annotated[
        NotTrue | None, refused(VLLM, "the prompt's tokens come with `return_token_ids`")
    ] = None
    vllm_xargs: Annotated[NoEntries | None, refused(VLLM, "it has no such extensions")] = None
    kv_transfer_params: Annotated[NoTransfer | None, refused(VLLM, _NO_TRANSFER)] = None
    ec_transfer_params: Annotated[NoEntries | None, refused(VLLM, _NO_TRANSFER)] = None
    bootstrap_host: Annotated[None, refused(SGLANG, _NO_TRANSFER)] = None
    bootstrap_port: Annotated[None, refused(SGLANG, _NO_TRANSFER)] = None
    bootstrap_room: Annotated[None, refused(SGLANG, _NO_TRANSFER)] = None
    routed_dp_rank: Annotated[Literal[0] | None, refused(SGLANG, _NO_RANKS)] = None
    data_parallel_rank: Annotated[Literal[0] | None, refused(SGLANG, _NO_RANKS)] = None
    disagg_prefill_dp_rank: Annotated[Literal[0] | None, refused(SGLANG, _NO_RANKS)] = None
    return_hidden_states: Annotated[NotTrue | None, refused(SGLANG, _NO_HIDDEN)] = None
    return_routed_experts: Annotated[NotTrue | None, refused(SGLANG, _NO_HIDDEN)] = None
    routed_experts_start_len: Annotated[Literal[0] | None, refused(SGLANG, _NO_HIDDEN)] = None
    routed_experts_prompt_start: Annotated[Literal[0] | None, refused(VLLM, _NO_HIDDEN)] = None
    return_cached_tokens_details: Annotated[
        NotTrue | None, refused(SGLANG, "`usage.prompt_tokens_details` says how much was reused")
    ] = None
    stop_regex: Annotated[Nothing | None, refused(SGLANG, "use `stop`")] = None
    session_params: Annotated[
        NoEntries | None, refused(SGLANG, "send the whole conversation; its prefix is reused")
    ] = None
    lora_path: Annotated[None, refused(SGLANG, "an adapter is named in `model`")] = None
    ngram_corpus_id: Annotated[None, refused(SGLANG, "it has no corpora to draft from")] = None
    custom_logit_processor: Annotated[None, refused(SGLANG, _NO_CODE)] = None
    custom_params: Annotated[NoEntries | None, refused(SGLANG, _NO_CODE)] = None
    custom_labels: Annotated[
        NoEntries | None, refused(SGLANG, "labels of metrics are the server's; use `x-tenant`")
    ] = None
    images_config: Annotated[NoEntries | None, refused(SGLANG, _NO_MEDIA)] = None
    return_token_offsets: Annotated[
        NotTrue | None, refused(VLLM, "the tokens of a prompt have no offsets here")
    ] = None
    return_mm_kwargs: Annotated[bool | None, accepted(VLLM, _NO_MEDIA)] = None
    prompt_cache_options: Annotated[
        NoEntries | None, refused(OPENAI, "a prefix is reused for as long as there is room")
    ] = None
    moderation: Annotated[None, refused(OPENAI, "it judges no texts")] = None
    chat_template: Annotated[
        None, refused(VLLM, "the template is the model's; `/v1/completions` takes any prompt")
    ] = None
    media_io_kwargs: Annotated[NoEntries | None, refused(VLLM, _NO_MEDIA)] = None
    mm_processor_kwargs: Annotated[NoEntries | None, refused(VLLM, _NO_MEDIA)] = None
    input_ids: Annotated[None, refused(SGLANG, "send token ids to `/v1/completions`")] = None
    task: Annotated[None, refused(SGLANG, "the served models have no such tasks")] = None
    return_prompt_token_ids: Annotated[
        NotTrue | None, refused(SGLANG, "use `return_token_ids`")
    ] = None
    return_meta_info: Annotated[
        NotTrue | None, refused(SGLANG, "use `include_metrics` and `usage`")
    ] = None
    max_dynamic_patch: Annotated[None, refused(SGLANG, _NO_MEDIA)] = None
    min_dynamic_patch: Annotated[None, refused(SGLANG, _NO_MEDIA)] = None
    use_audio_in_video: Annotated[NotTrue | None, refused(SGLANG, _NO_MEDIA)] = None
    prompt_embeds: Annotated[None, refused(VLLM, "a prompt is text or token ids")] = None
