"""Whether every token that a command names is one of the model's.

The gateway refuses such ids with the name of the field; here is the last door before the
device, where one of them would fail a step for everybody in it.
"""

from __future__ import annotations

from itertools import chain

from service.engine.inbox import Submit


def names_unknown_token(submit: Submit, vocab_tokens: int | None) -> bool:
    """Where the size is not known (a replay has names of blocks for tokens) only ids that no
    vocabulary has, in what the client chose, count as unknown."""
    chosen = chain(submit.end_token_ids, submit.stop_token_ids, submit.sampling.logit_bias or ())
    if vocab_tokens is None:
        return any(token_id < 0 for token_id in chosen)
    if submit.prompt and not 0 <= min(submit.prompt) <= max(submit.prompt) < vocab_tokens:
        return True
    return any(not 0 <= token_id < vocab_tokens for token_id in chosen)
