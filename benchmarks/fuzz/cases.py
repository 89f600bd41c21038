"""Makes generated requests cheap, and those that are meant to be right likely to be served.

Types cannot say that a token id must be in the vocabulary, that one constraint is enough, or that
an answer should be short because there are thousands to come.
"""

from __future__ import annotations

from typing import Any

MOST_TOKENS = 4
MOST_SEQUENCES = 4
_COMMON_IDS = 1000
_CONSTRAINTS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar",
    "guided_choice",
)  # fmt: skip
_LIMITS = ("max_tokens", "max_completion_tokens")
# what the model served has no use for: its template reads no variables, and it does not reason
_FOR_OTHER_MODELS = (
    "chat_template_kwargs", "documents", "reasoning_effort", "reasoning", "thinking_token_budget",
    "continue_final_message",
)  # fmt: skip
_ASSISTANTS_OWN = ("refusal", "reasoning_content", "reasoning")


def make_short(body: Any) -> None:
    """Bound what the request may generate; what is wrong with it stays wrong."""
    if not isinstance(body, dict):
        return
    limits = ("max_output_tokens",) if "input" in body else _LIMITS
    for name in limits:
        if _is_int(body.get(name)) and MOST_TOKENS < body[name] <= 1 << 31:
            body[name] = MOST_TOKENS
    if all(body.get(name) is None for name in limits):
        body[limits[0]] = MOST_TOKENS
    if _is_int(body.get("n")) and MOST_SEQUENCES < body["n"] <= 16:
        body["n"] = MOST_SEQUENCES
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(map(_is_int, prompt)):
        body["prompt"] = prompt[:MOST_SEQUENCES]


def make_servable(body: Any) -> None:
    """For a body of the right types: what the types do not say."""
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        body[name] = _whole(value)
    make_short(body)
    for name in ("model", "suffix", *_FOR_OTHER_MODELS):
        body.pop(name, None)
    for name in ("messages", "input"):
        if isinstance(body.get(name), list):
            body[name] = [_servable_message(one) for one in body[name]] or "x"
    if _is_int(body.get("min_tokens")):
        body["min_tokens"] = min(body["min_tokens"], MOST_TOKENS)
    if not body.get("stream"):
        body.pop("stream_options", None)
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    _make_prompt_servable(body)
    asked = [name for name in _CONSTRAINTS if body.get(name) is not None]
    for name in asked[1:]:
        del body[name]
    if asked:
        body.pop("ignore_eos", None)
    _use_common_ids(body)


def _servable_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message of some role, with what only the assistant's may have where it is one."""
    if message.get("type") == "reasoning":
        return message
    found = {"role": "user", **message}
    if found["role"] is None:
        found["role"] = "user"
    if found["role"] != "assistant":
        for name in _ASSISTANTS_OWN:
            found.pop(name, None)
        if found.get("content") is None or isinstance(found["content"], list):
            found["content"] = "x"
    return found if found.get("content") is not None else {**found, "content": "x"}


def _make_prompt_servable(body: dict[str, Any]) -> None:
    """What is asked of the prompt, and of candidates."""
    if body.get("stream"):
        body.pop("best_of", None)
        body.pop("prompt_logprobs", None)
        if body.get("logprobs") is not None:
            body.pop("echo", None)
    if _is_int(body.get("best_of")):
        body["best_of"] = max(body.get("n") or 1, min(body["best_of"], MOST_SEQUENCES))
    reads = body.get("echo") or body.get("prompt_logprobs") is not None
    if body.get("max_tokens") == 0 and not reads:
        body["max_tokens"] = 1


def _use_common_ids(body: dict[str, Any]) -> None:
    for name in ("prompt", "stop_token_ids"):
        if isinstance(body.get(name), list):
            body[name] = [_common(item) for item in body[name]]
    if isinstance(body.get("logit_bias"), dict):
        body["logit_bias"] = {
            str(int(key) % _COMMON_IDS): bias for key, bias in body["logit_bias"].items()
        }


def _whole(value: Any) -> Any:
    """5.0 as 5: a schema calls both an integer, and the server only one of them."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _common(item: Any) -> Any:
    if isinstance(item, list):
        return [_common(one) for one in item]
    return item % _COMMON_IDS if _is_int(item) else item


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
