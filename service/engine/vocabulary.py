"""The tokens of a model as bytes, as grammars need them.

It is built beside the tokenizer and sent to the engine process at launch, because the
code that masks logits must not depend on the text layer.
"""

from __future__ import annotations

import msgspec


class Vocabulary(msgspec.Struct, frozen=True):
    """`token_bytes[i]` is what token i adds to a text: nothing for special tokens.

    `tokenizer_json` holds the rules of encoding in the format of the `tokenizers`
    library. With it, text that a grammar forces is spelt in the tokens that the model
    was trained on; without it, in the longest tokens that fit.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    tokenizer_json: str = ""


# how JSON is written under a grammar. One blank, or a new line with indentation: a small model left
# to itself never stops
JSON_SPELLING = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_pattern": r"[ ]|\n {0,24}",
}
# of a schema, a regular expression or a grammar; checked by the gateway and before compiling
MAX_GRAMMAR_CHARACTERS = 64 * 1024
