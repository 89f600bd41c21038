"""What a node refuses of a submit, whoever sends it. Pure.

A gateway has checked all this for its client; a node does not rely on it.
"""

from __future__ import annotations

from service.engine.vocabulary import MAX_GRAMMAR_CHARACTERS
from service.fleet.wire.messages import RemoteSubmit
from telemetry.facts.engine_records import EngineStarted

MOST_ALTERNATIVES = 20
MOST_BIASED = 1024
MOST_GRAMMAR_CHARACTERS = 16 * MAX_GRAMMAR_CHARACTERS
"""The grammar of functions is written by the gateway, and longer than what a client may write."""


def refusal_of(submit: RemoteSubmit, started: EngineStarted, vocab_tokens: int) -> str | None:
    """Why the engine cannot take the sequence, in one line without token ids; None: it can."""
    sampling, output = submit.sampling, submit.prompt_output
    tokens = len(submit.prompt) + submit.max_tokens
    if tokens > started.max_model_tokens:
        return (
            f"prompt and output are {tokens} tokens, and the engine's context is "
            f"{started.max_model_tokens}"
        )
    known = (submit.prompt, submit.end_token_ids, submit.stop_token_ids, sampling.logit_bias or ())
    if any(not 0 <= min(ids, default=0) <= max(ids, default=0) < vocab_tokens for ids in known):
        return "a token id is not in the engine's vocabulary"
    if len(sampling.logit_bias or ()) > MOST_BIASED:
        return f"logit_bias has more than {MOST_BIASED} tokens"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MOST_ALTERNATIVES:
        return f"logprobs is not within 0 and {MOST_ALTERNATIVES}"
    if not 0 <= sampling.temperature < float("inf") or not 0 < sampling.top_p <= 1:
        return "temperature or top_p is out of bounds"
    if submit.grammar is not None and len(submit.grammar.source) > MOST_GRAMMAR_CHARACTERS:
        return f"the grammar is longer than {MOST_GRAMMAR_CHARACTERS} characters"
    if output is not None and started.no_prompt_outputs:
        return f"the engine reads nothing of prompts: {started.no_prompt_outputs}"
    if output is not None and not 0 <= (output.logprobs or 0) <= MOST_ALTERNATIVES:
        return f"prompt_logprobs is not within 0 and {MOST_ALTERNATIVES}"
    return None
