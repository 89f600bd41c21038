"""Both libraries behind one pair of methods: compile a schema, then mask and accept tokens."""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np


class Matching(Protocol):
    def mask(self) -> np.ndarray: ...
    def accept(self, token_id: int) -> bool: ...


class Library(Protocol):
    def compile(self, schema: Any) -> Matching:
        """Raises ValueError when the schema is refused."""


class Llguidance:
    """Compiles to a matcher at once."""

    def __init__(
        self, tokens: list[bytes], special: list[int], ends: list[int], spelling: str
    ) -> None:
        import llguidance

        from service.device.sampling.grammar import library_tokenizer
        from service.engine.vocabulary import Vocabulary

        self._library = llguidance
        words = tuple(b"" if i in special else token for i, token in enumerate(tokens))
        vocabulary = Vocabulary(words, tuple(special), tuple(ends), spelling)
        self._tokenizer = library_tokenizer(vocabulary, len(tokens))

    def compile(self, schema: Any) -> Matching:
        matcher_type = self._library.LLMatcher
        text = matcher_type.grammar_from_json_schema(json.dumps(schema))
        matcher = matcher_type(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error().splitlines()[0])
        return _LlguidanceMatching(matcher, self._tokenizer.vocab_size)


class _LlguidanceMatching:
    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher = matcher
        self._row = np.zeros((vocab + 31) // 32, dtype=np.int32)

    def mask(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        return self._row

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))


class Xgrammar:
    """Its defaults, but with JSON Schema's own meaning of absent keywords."""

    def __init__(
        self, tokens: list[bytes], special: list[int], ends: list[int], spelling: str
    ) -> None:
        import xgrammar

        self._library = xgrammar
        words = [b"" if i in special else token for i, token in enumerate(tokens)]
        info = xgrammar.TokenizerInfo(
            words, xgrammar.VocabType.RAW, vocab_size=len(words), stop_token_ids=ends
        )
        self._vocab = len(words)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: Any) -> Matching:
        try:
            compiled = self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
            matcher = self._library.GrammarMatcher(compiled)
        except Exception as error:
            raise ValueError(str(error).strip().splitlines()[-1]) from error
        return _XgrammarMatching(self._library, matcher, self._vocab)


class _XgrammarMatching:
    def __init__(self, library: Any, matcher: Any, vocab: int) -> None:
        self._matcher = matcher
        self._bits = library.allocate_token_bitmask(1, vocab)
        self._row = self._bits[0].numpy()

    def mask(self) -> np.ndarray:
        if self._matcher.fill_next_token_bitmask(self._bits) is False:
            self._row[:] = -1  # everything is allowed
        return self._row

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))
