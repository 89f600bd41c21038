"""Caps on what a client may send, with units and reasons.

Whatever is processed once a token, or kept for as long as the request, costs all requests, so
every list needs a cap. The request types use these caps, so that parsing, the OpenAPI document and
`docs/reference/limits.md` cannot differ. Text has no cap of its own: `--max-body` bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.config.adapter_settings import ADAPTER_NAME_CHARACTERS as MOST_NAME_CHARACTERS
from service.engine.adapters.registry import MAX_KNOWN_ADAPTERS
from service.engine.vocabulary import MAX_GRAMMAR_CHARACTERS


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `value` of `what`, in `unit`."""

    value: int
    unit: str
    what: str
    reason: str


MESSAGES = Limit(
    4096, "messages", "`messages`",
    "the chat template runs once over each, and a conversation this long fits no context",
)  # fmt: skip
CONTENT_PARTS = Limit(
    1024, "parts", "`content` of one message", "they are joined into one text anyway"
)
MESSAGE_NAME_CHARACTERS = Limit(256, "characters", "`name` of a message", "it is a name")
TEMPLATE_VARIABLES = Limit(
    32, "names", "`chat_template_kwargs`", "templates read a handful of variables"
)
TEMPLATE_NAME_CHARACTERS = Limit(
    64, "characters", "a name in `chat_template_kwargs`", "it is a name"
)
TEMPLATE_CHARACTERS = Limit(
    4096, "characters", "a text in `chat_template_kwargs`",
    "a template may repeat it with every message",
)  # fmt: skip
TEMPLATE_NUMBER = Limit(
    1 << 20, "either way", "a number in `chat_template_kwargs`",
    "a template may count to it, or repeat a text so often",
)  # fmt: skip
DOCUMENTS = Limit(256, "documents", "`documents`", "the chat template runs once over each")
SEQUENCES = Limit(
    256, "sequences", "prompts times `n` or `best_of`",
    "each is scheduled, and holds cache blocks, on its own",
)  # fmt: skip
CHOICES = Limit(
    16, "choices", "`n`, `best_of`", "they share a prompt and are kept until the last one ends"
)
EMBEDDING_INPUTS = Limit(2048, "inputs", "`input` of /v1/embeddings", "OpenAI's own cap")
PROMPT_IDS = Limit(
    1 << 20, "token ids", "`prompt` as token ids, or the list of prompts",
    "more than any context holds",
)  # fmt: skip
TOKEN_ID = Limit((1 << 31) - 1, "", "a token id", "more than any vocabulary has")
TOKENS = Limit(
    1 << 31, "tokens", "`max_tokens`, `max_completion_tokens`, `min_tokens`, `top_k`",
    "the context bounds the output before this does",
)  # fmt: skip
STOPS = Limit(16, "texts", "`stop`", "each is looked for in the text after every token")
STOP_CHARACTERS = Limit(
    1024, "characters", "each text of `stop`",
    "so much of a stream is held back while it might be the beginning of one",
)  # fmt: skip
STOP_IDS = Limit(
    256, "token ids", "`stop_token_ids`", "they travel to the engine, which keeps them as a set"
)
LOGIT_BIAS = Limit(
    1024, "token ids", "`logit_bias`", "it is added to the logits of every step of the request"
)
LOGPROBS = Limit(
    20, "tokens", "`logprobs`, `top_logprobs`, `prompt_logprobs`",
    "so many are sorted, named and sent a token",
)  # fmt: skip
PROMPT_SCORES = Limit(
    1 << 20, "token texts",
    "scores of prompts: their tokens times alternatives and one, with each choice",
    "they are kept until the answer is sent, and each is written with its text",
)  # fmt: skip
RETURNED_IDS = Limit(
    1 << 20, "token ids", "prompts that `return_token_ids` repeats, with each choice",
    "they are written in one piece",
)  # fmt: skip
TOKENIZED_IDS = Limit(
    1 << 20, "token ids", "the answer of `/tokenize`",
    "more than any context holds, and they are written in one piece",
)  # fmt: skip
DETOKENIZED_BYTES = Limit(
    8 << 20, "bytes", "the text that `/detokenize` answers with", "it is written in one piece"
)
ECHOED_CHARACTERS = Limit(
    8 << 20, "characters", "prompts that `echo` repeats, with each choice",
    "they are written in one piece",
)  # fmt: skip
PRIORITY = Limit(100, "classes each way", "`priority`", "requests age through them")
TIMEOUT_S = Limit(86_400, "seconds", "`timeout`", "a day")
MODEL_CHARACTERS = Limit(512, "characters", "`model`", "it is echoed in the error")
ADAPTERS = Limit(
    MAX_KNOWN_ADAPTERS, "adapters", "adapters that one server knows",
    "each is a name in lists; the memory of those in use is bounded by --lora-memory",
)  # fmt: skip
ADAPTER_NAME_CHARACTERS = Limit(
    MOST_NAME_CHARACTERS, "characters", "`lora_name`", "it becomes a label of metrics"
)
PATH_CHARACTERS = Limit(4096, "characters", "`lora_path`", "as long as a path may be")
UNLOAD_WAIT_S = Limit(50, "seconds", "`timeout` of an unload", "the answer waits so long")
SALT_CHARACTERS = Limit(256, "characters", "`cache_salt`", "it is hashed for every cached block")
USER_CHARACTERS = Limit(
    512, "characters", "`user`, `safety_identifier`, `prompt_cache_key`",
    "they have no effect here; this is what OpenAI allows and more",
)  # fmt: skip
METADATA_ENTRIES = Limit(16, "entries", "`metadata`", "OpenAI's own cap; it has no effect here")
METADATA_KEY_CHARACTERS = Limit(64, "characters", "a key of `metadata`", "OpenAI's own cap")
METADATA_CHARACTERS = Limit(512, "characters", "a value of `metadata`", "OpenAI's own cap")
GRAMMAR_CHARACTERS = Limit(
    MAX_GRAMMAR_CHARACTERS, "characters", "a JSON schema, a regular expression or a grammar",
    "compiling takes time that grows with it",
)  # fmt: skip
SCHEMA_LEVELS = Limit(
    128, "levels", "nesting of a JSON schema, and of `arguments` in `tool_calls`",
    "they are processed by recursion",
)  # fmt: skip
CHOICE_TEXTS = Limit(
    4096, "texts", "`guided_choice`, `structured_outputs.choice`",
    "they become one regular expression, to which its cap applies too",
)  # fmt: skip
SCHEMA_NAME_CHARACTERS = Limit(
    64, "characters", "`response_format.json_schema.name`", "OpenAI's own cap"
)
SCHEMA_DESCRIPTION_CHARACTERS = Limit(
    4096, "characters", "`response_format.json_schema.description`", "it has no effect here"
)
TOOLS = Limit(
    128, "tools", "`tools`", "each is described in the prompt, and is an alternative of the grammar"
)
FUNCTION_NAME_CHARACTERS = Limit(64, "characters", "`name` of a function", "OpenAI's own cap")
FUNCTION_DESCRIPTION_CHARACTERS = Limit(
    16_384, "characters", "`description` of a function", "it becomes a part of the prompt"
)
MESSAGE_CALLS = Limit(128, "calls", "`tool_calls` of one message", "an answer has no more of them")
ANSWER_CALLS = Limit(
    128, "calls", "calls in one choice of an answer", "a small model may go on repeating itself"
)
CALL_ID_CHARACTERS = Limit(
    128, "characters", "`id` of a call, `tool_call_id`", "it is looked up, and rendered"
)
REMEMBERED_CALLS = Limit(
    16_384, "calls", "calls whose result is waited for", "the oldest are forgotten, and counted"
)
REMEMBERED_S = Limit(
    3600, "seconds", "how long a call is remembered", "a result that comes later has no `tool` span"
)
RETURNED_CALLS = Limit(
    16, "answers", "answers whose calls one request brings results of", "each becomes a span"
)
INCLUDED = Limit(16, "names", "`include` of `/v1/responses`", "OpenAI knows fewer")
ITEM_NAME_CHARACTERS = Limit(
    256, "characters", "`id` of an item in `input`", "it is a name, and has no effect here"
)
REQUEST_ID_CHARACTERS = Limit(
    128, "characters", "the header `x-request-id`",
    "it is kept with every fact of the request; a longer one is replaced",
)  # fmt: skip
LABEL_CHARACTERS = Limit(
    64, "characters", "the headers `x-tenant` and `x-slo-class`",
    "they become labels of metrics; a longer one counts as absent",
)  # fmt: skip
TENANT_WEIGHTS = Limit(
    256, "tenants", "`tenant_weights` of `PUT /debug/limits`", "each change is sent and recorded"
)
TENANT_WEIGHT = Limit(
    1000, "times", "one weight of `tenant_weights`, and one over its least",
    "what a tenant is charged stays a number",
)  # fmt: skip
ITL_TARGET_MS = Limit(60_000, "ms", "`itl_target_ms` of `PUT /debug/limits`", "a minute")
SPECULATIVE_TOKENS = Limit(
    16, "tokens", "`speculative_tokens` of `PUT /debug/limits`", "as many as the flag allows"
)
BY_CHARACTERS = Limit(64, "characters", "`by` of `PUT /debug/limits`", "it is a name")
WHY_CHARACTERS = Limit(
    200, "characters", "`why` of `PUT /debug/limits`", "it becomes an attribute of spans"
)
LISTED_REQUESTS = Limit(
    1000, "requests", "`limit` of `GET /debug/requests`", "the next ones are asked for by number"
)
BATCH_ROWS = Limit(256, "rows", "`rows` of `GET /debug/batch`", "more fit on no screen")
PROFILE_STEPS = Limit(200, "steps", "`steps` of a profile", "the trace grows with each")
PROFILE_S = Limit(120, "seconds", "`timeout_s` of a profile", "profiling slows every step")


def all_limits() -> list[Limit]:
    """All caps, in the order of this file."""
    return [value for value in globals().values() if isinstance(value, Limit)]
