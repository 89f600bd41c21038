"""Which tokens a grammar allows next, over the `llguidance` library.

A `Matcher` follows one sequence. It never leaves a row without a token: when the text is
complete, and also when the library gives up on it, the end tokens are all that is allowed.

A mask is a row of bits, one a token, least significant bit first, in int32 words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from tokenizers import Tokenizer as Encoder

from service.engine.vocabulary import Vocabulary

_WORD_BITS = 32

MaskRow = NDArray[np.int32]


class _Spelling:
    """What the library asks of a tokenizer: the words, and how a forced text is spelt."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_logits: int) -> None:
        special = set(vocabulary.special_ids) | set(vocabulary.end_token_ids)
        words = [*vocabulary.token_bytes, *[b""] * vocab_logits][:vocab_logits]
        # a name of its own for each special token: the library keeps them apart by bytes
        self.tokens = [
            f"<special {token_id}>".encode() if token_id in special else word
            for token_id, word in enumerate(words)
        ]
        self.special_token_ids = sorted(token_id for token_id in special if token_id < len(words))
        self.eos_token_id = vocabulary.end_token_ids[0]
        self.library: LLTokenizer | None = None
        self._words = words
        spelt = vocabulary.tokenizer_json
        self._encoder: Encoder | None = Encoder.from_str(spelt) if spelt else None

    def __call__(self, data: bytes) -> list[int]:
        """Tokens of exactly these bytes, the model's own spelling where it has one."""
        if self.library is None:
            return []
        text = data.decode()
        if self._encoder is not None:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
            if b"".join(self._words[token_id] for token_id in ids) == data:
                return ids
        return self.library.greedy_tokenize(text)


def library_tokenizer(vocabulary: Vocabulary, vocab_logits: int) -> LLTokenizer:
    """The library's view of a vocabulary, as wide as the model's logits."""
    if not vocabulary.end_token_ids:
        raise ValueError("a vocabulary without end tokens cannot be constrained")
    spelling = _Spelling(vocabulary, vocab_logits)
    tokenizer = LLTokenizer(TokenizerWrapper(spelling), eos_token=list(vocabulary.end_token_ids))
    spelling.library = tokenizer
    return tokenizer


def mask_words(vocab_logits: int) -> int:
    return (vocab_logits + _WORD_BITS - 1) // _WORD_BITS


def end_tokens_only(end_token_ids: Sequence[int], vocab_logits: int) -> MaskRow:
    """The mask of a text that is complete."""
    row = np.zeros(mask_words(vocab_logits), dtype=np.uint32)
    for token_id in end_token_ids:
        row[token_id // _WORD_BITS] |= np.uint32(1 << (token_id % _WORD_BITS))
    return row.view(np.int32)


class Matcher:
    """One sequence's place in its grammar."""

    def __init__(self, library: LLMatcher, ends: MaskRow) -> None:
        self._library = library
        self._ends = ends

    @property
    def is_finished(self) -> bool:
        """Nothing but an end token can follow."""
        return self._library.is_stopped()

    @property
    def is_complete(self) -> bool:
        """The text satisfies the grammar as it stands, though it may go on."""
        return self._library.is_accepting()

    @property
    def is_dead(self) -> bool:
        """The library gave up: a limit was hit, or a token came that it had not allowed."""
        return self._library.is_error()

    def accept(self, token_id: int) -> bool:
        """Go on past a token; False if it was not allowed, which ends the text."""
        return self._library.consume_token(token_id)

    def replay(self, outputs: Sequence[int]) -> None:
        """Go on past everything that was generated before a preemption."""
        self._library.consume_tokens(list(outputs))

    def fill(self, row: MaskRow) -> None:
        """Write the mask of what may come next."""
        if not self._library.is_stopped():
            self._library.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if not self._library.is_error() and row.any():
                return
        row[:] = self._ends

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of these tokens would be allowed in turn; changes nothing."""
        trial = Matcher(self._library.deep_copy(), self._ends)
        row = np.zeros_like(self._ends)
        for count, token_id in enumerate(tokens):
            trial.fill(row)
            if not bit(row, token_id):
                return count
            trial.accept(token_id)
        return len(tokens)


def bit(row: MaskRow, token_id: int) -> bool:
    """Whether a mask allows a token."""
    word = token_id // _WORD_BITS
    return word < len(row) and bool(int(row[word]) >> (token_id % _WORD_BITS) & 1)


class MaskRows:
    """Memory for the masks of a batch, and their use on logits."""

    def __init__(self, vocab_logits: int) -> None:
        self._vocab = vocab_logits
        self._rows = np.zeros((0, mask_words(vocab_logits)), dtype=np.int32)

    def fill(self, matchers: Sequence[Matcher]) -> NDArray[np.int32]:
        """One row a matcher; valid until the next call."""
        if len(matchers) > len(self._rows):
            self._rows = np.zeros((len(matchers), self._rows.shape[1]), dtype=np.int32)
        rows = self._rows[: len(matchers)]
        for row, matcher in zip(rows, matchers, strict=True):
            matcher.fill(row)
        return rows

    def forbidden(self, rows: NDArray[np.int32], device: torch.device) -> torch.Tensor:
        """The tokens that are not allowed, as booleans [rows, vocab]."""
        flipped = np.invert(rows).view(np.uint8)
        if device.type == "cpu":
            bits = np.unpackbits(flipped, axis=1, bitorder="little").view(np.bool_)
            return torch.from_numpy(bits)[:, : self._vocab]
        # an eighth to copy; the device unpacks at once what would take torch ages on a CPU
        packed = torch.from_numpy(flipped).to(device)
        shifts = torch.arange(8, dtype=torch.uint8, device=device)
        bits_there = packed.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_(1)
        return bits_there.flatten(1)[:, : self._vocab].bool()
