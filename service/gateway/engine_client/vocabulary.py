"""The tokenizer's vocabulary as the engine process needs it to compile grammars."""

from __future__ import annotations

from service.engine.vocabulary import Vocabulary
from service.text.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The tokenizer's tokens as bytes; special tokens have none."""
    special = tokenizer.special_ids | set(tokenizer.eos_token_ids)
    return Vocabulary(
        token_bytes=tuple(
            b"" if token_id in special else tokenizer.token_bytes(token_id)
            for token_id in range(tokenizer.vocab_size)
        ),
        special_ids=tuple(sorted(special)),
        end_token_ids=tokenizer.eos_token_ids,
        tokenizer_json=tokenizer.backend_json(),
    )
