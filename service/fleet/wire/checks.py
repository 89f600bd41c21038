"""What an engine refuses of a submit, whoever sends it: a gateway to its node, or another engine
that wants a prompt computed. Pure.

A gateway has checked all this for its client; neither relies on it.
"""

from __future__ import annotations

from math import isfinite

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.engine.vocabulary import MAX_GRAMMAR_CHARACTERS
from service.fleet.wire.messages import RemoteSubmit
from telemetry.facts.engine_records import EngineStarted

MOST_ALTERNATIVES = 20
MOST_BIASED = 1024
MOST_TOP_K = 1 << 31
MOST_GRAMMAR_CHARACTERS = 16 * MAX_GRAMMAR_CHARACTERS
"""The grammar of functions is written by the gateway, and longer than what a client may write."""
MOST_STOP_IDS, MOST_PRIORITY, MOST_NAME_CHARACTERS = 256, 100, 1024
"""No less than the types of `RemoteSubmit` allow."""


def refusal_of(submit: RemoteSubmit, started: EngineStarted, vocab_tokens: int) -> str | None:
    """Why the engine cannot take the sequence, in one line without token ids; None: it can."""
    output = submit.prompt_output
    why = _refusal(submit, started.max_model_tokens, vocab_tokens)
    if why is not None:
        return why
    if output is not None and started.no_prompt_outputs:
        return f"the engine reads nothing of prompts: {started.no_prompt_outputs}"
    if output is not None and not 0 <= (output.logprobs or 0) <= MOST_ALTERNATIVES:
        return f"prompt_logprobs is not within 0 and {MOST_ALTERNATIVES}"
    return None


def refusal_for_peer(submit: Submit, max_model_tokens: int, vocab_tokens: int) -> str | None:
    """Why the engine cannot compute a prompt for another engine, which sends a whole Submit."""
    if max(len(submit.end_token_ids), len(submit.stop_token_ids)) > MOST_STOP_IDS:
        return f"more than {MOST_STOP_IDS} token ids end it"
    if abs(submit.priority) > MOST_PRIORITY:
        return f"priority is not within -{MOST_PRIORITY} and {MOST_PRIORITY}"
    if max(len(submit.tenant), len(submit.cache_salt)) > MOST_NAME_CHARACTERS:
        return "tenant or cache_salt is too long"
    return _refusal(submit, max_model_tokens, vocab_tokens)


def _refusal(submit: RemoteSubmit | Submit, max_model_tokens: int, vocab_tokens: int) -> str | None:
    sampling = submit.sampling
    tokens = len(submit.prompt) + submit.max_tokens
    if tokens > max_model_tokens:
        return (
            f"prompt and output are {tokens} tokens, and the engine's context is {max_model_tokens}"
        )
    known = (submit.prompt, submit.end_token_ids, submit.stop_token_ids, sampling.logit_bias or ())
    if any(not 0 <= min(ids, default=0) <= max(ids, default=0) < vocab_tokens for ids in known):
        return "a token id is not in the engine's vocabulary"
    if len(sampling.logit_bias or ()) > MOST_BIASED:
        return f"logit_bias has more than {MOST_BIASED} tokens"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MOST_ALTERNATIVES:
        return f"logprobs is not within 0 and {MOST_ALTERNATIVES}"
    if not _can_be_drawn(sampling):
        return "temperature, top_p, top_k, min_p, a penalty or a bias is out of bounds"
    if submit.grammar is not None and len(submit.grammar.source) > MOST_GRAMMAR_CHARACTERS:
        return f"the grammar is longer than {MOST_GRAMMAR_CHARACTERS} characters"
    return None


def _can_be_drawn(sampling: SamplingParams) -> bool:
    """What is no number fails each comparison."""
    penalties = (sampling.presence_penalty, sampling.frequency_penalty)
    biases = (sampling.logit_bias or {}).values()
    return (
        0 <= sampling.temperature < float("inf")
        and 0 < sampling.top_p <= 1
        and 0 <= sampling.top_k <= MOST_TOP_K
        and 0 <= sampling.min_p <= 1
        and 0 < sampling.repetition_penalty < float("inf")
        and all(map(isfinite, penalties))
        and all(map(isfinite, biases))
    )
