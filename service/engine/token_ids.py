"""Whether every token id of a command is in the model's vocabulary.

The gateway refuses other ids with the name of the field. This is the last check before the
device, where such an id would fail the step for all of its sequences.
"""

from __future__ import annotations

from itertools import chain

from service.engine.inbox import Submit


def names_unknown_token(submit: Submit, vocab_tokens: int | None) -> bool:
    """Whether a command has an id outside 0 .. vocab_tokens - 1. With `vocab_tokens` None, as in
    replay, where block aliases stand for the prompt, only negative ids that the client chose
    count."""
    sampling = submit.sampling
    reasoning = sampling.reasoning
    marks = () if reasoning is None else (reasoning.begin_id, reasoning.end_id)
    chosen = chain(submit.end_token_ids, submit.stop_token_ids, sampling.logit_bias or (), marks)
    if vocab_tokens is None:
        return any(token_id < 0 for token_id in chosen)
    if submit.prompt and not 0 <= min(submit.prompt) <= max(submit.prompt) < vocab_tokens:
        return True
    return any(not 0 <= token_id < vocab_tokens for token_id in chosen)
