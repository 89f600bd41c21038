"""A tokenizer with its grammar compiler, for tests of what grammars allow."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from service.device.sampling.grammar import Matcher, mask_words
from service.device.sampling.grammar_compiler import GrammarCompiler
from service.device.sampling.sampler import Sampler
from service.engine.inbox import GrammarReady
from service.engine.plan import DecodeRow, Grammar, GrammarKind, SamplingParams, SlotStart
from service.gateway.engine_client.vocabulary import vocabulary_of
from service.text.tokenizer import Tokenizer
from telemetry.facts.clock import MonotonicClock

LONGEST = 120


class World:
    """A tokenizer, its grammar compiler, and the compiler's results."""

    def __init__(self, tokenizer: Tokenizer, cached_grammars: int = 64) -> None:
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab_size + 3  # a model with padding above its vocabulary
        self.told: list[GrammarReady] = []
        self.tellers: list[str] = []
        self._news = threading.Condition()
        self.compiler = GrammarCompiler(
            vocabulary_of(tokenizer), self.vocab, MonotonicClock(), self._hear, cached_grammars
        )
        closing = (b'"', b"}", b"]", b",")
        self.closing = [
            i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) in closing
        ]
        self.end = tokenizer.eos_token_ids[0]

    def _hear(self, news: GrammarReady) -> None:
        with self._news:
            self.told.append(news)
            self.tellers.append(threading.current_thread().name)
            self._news.notify_all()

    def compiled(self, seq_id: int, grammar: Grammar) -> GrammarReady:
        """Compile a grammar and wait for the result."""
        self.compiler.request(seq_id, grammar)
        with self._news:
            assert self._news.wait_for(lambda: any(n.seq_id == seq_id for n in self.told), 30)
        return next(news for news in self.told if news.seq_id == seq_id)

    def sampler(self, *starts: SlotStart) -> Sampler:
        sampler = Sampler(self.vocab, MonotonicClock(), self.compiler)
        for start in starts:
            sampler.start(start)
        return sampler

    def mask(self, matcher: Matcher) -> np.ndarray[Any, Any]:
        row = np.zeros(mask_words(self.vocab), dtype=np.int32)
        matcher.fill(row)
        return row

    def text_of(self, grammar: Grammar, weather: int, **fields: Any) -> str | None:
        """A text drawn from random logits; None if it grew too long."""
        sampler = self.sampler(start(0, grammar, ends=self.tokenizer.eos_token_ids, **fields))
        source = torch.Generator().manual_seed(weather)
        tokens: list[int] = []
        for index in range(LONGEST):
            logits = torch.randn(1, self.vocab, generator=source) * 3
            logits[0, self.closing] += 6
            token = sampler.sample([row(0, index)], logits)[0][0].token_id
            if token in self.tokenizer.eos_token_ids:
                return self.tokenizer.decode(tokens)
            tokens.append(token)
        return None


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value, ensure_ascii=False))


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


JSON_OBJECT = Grammar(GrammarKind.JSON_OBJECT, "")


def row(slot: int, index: int = 0) -> DecodeRow:
    return DecodeRow(seq_id=slot, slot=slot, start=0, blocks=[], output_index=index)


def start(
    slot: int, grammar: Grammar | None, *, outputs: Sequence[int] = (), min_tokens: int = 0,
    ends: Sequence[int] = (), **fields: Any,
) -> SlotStart:  # fmt: skip
    params = SamplingParams(**fields)
    return SlotStart(slot, slot, params, [1], outputs, min_tokens, ends, grammar)
