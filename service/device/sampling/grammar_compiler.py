"""Compiles grammars beside the engine's steps, each once.

One worker thread builds; the library lets go of the interpreter lock meanwhile. Results,
failures too, stay in a bounded cache. What a grammar may cost is bounded three times: by
its length, by the library's own limits, and, per mask, by the same limits again. The
worker has a large stack: the library follows rules that lead to rules by recursion, and a
chain of a few thousand would otherwise end the process.

A request waits until its grammar is ready, and what a live sequence asked for stays, so the sampler
finds what it needs. What nobody wants any more is not built: clients that ask and leave cost others
no wait. Only for a grammar that was not asked for (a replay without the wait) the sampler waits for
the worker, which changes no output.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from service.device.sampling.gbnf import as_lark
from service.device.sampling.grammar import (
    MaskRow,
    Matcher,
    end_tokens_only,
    library_tokenizer,
    mask_words,
)
from service.engine.inbox import GrammarReady
from service.engine.plan import Grammar, GrammarKind
from service.engine.vocabulary import JSON_SPELLING, MAX_GRAMMAR_CHARACTERS, Vocabulary
from telemetry.facts.clock import Clock

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# a longer stretch without a choice would be spelt anew for each of its tokens
_MAX_FORCED_BYTES = 4096
_CACHED_GRAMMARS = 256
_PROBED_TOKENS = 3
_STACK_BYTES = 512 << 20  # address space; only what is used becomes memory
_ERROR_CHARACTERS = 300
# all are set, so that a schema's own "x-guidance" cannot loosen them
_JSON_OPTIONS: JsonCompileOptions = {
    "item_separator": JSON_SPELLING["item_separator"],
    "key_separator": JSON_SPELLING["key_separator"],
    "whitespace_pattern": JSON_SPELLING["whitespace_pattern"],
    "coerce_one_of": False,
    "lenient": False,
}


class GrammarRefused(Exception):
    """One line that says why a grammar cannot be used."""


class GrammarCompiler:
    """Grammars by their text. Any thread may call it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_logits: int,
        clock: Clock,
        on_ready: Callable[[GrammarReady], None],
        cached_grammars: int = _CACHED_GRAMMARS,
    ) -> None:
        self._vocabulary = vocabulary
        self._vocab_logits = vocab_logits
        self._clock = clock
        self._on_ready = on_ready
        self._cached_grammars = cached_grammars
        self._ends = end_tokens_only(vocabulary.end_token_ids, vocab_logits)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, LLMatcher | GrammarRefused] = OrderedDict()
        self._wanted: dict[int, Grammar] = {}  # by live sequence
        self._uses: Counter[Grammar] = Counter()  # live sequences that want it
        self._waiting: OrderedDict[int, Grammar] = OrderedDict()  # by sequence
        # an error in a chain of rules has a cause for each: with a backtrace for each, minutes
        os.environ["RUST_LIB_BACKTRACE"] = "0"
        self._library: LLTokenizer | None = None
        self._library_lock = threading.Lock()
        self._worker = _worker_with_a_large_stack()

    @property
    def vocab_logits(self) -> int:
        return self._vocab_logits

    def request(self, seq_id: int, grammar: Grammar) -> None:
        """Have it ready until the sequence has `ended`; `on_ready` tells, at once if it is known,
        else from the worker."""
        with self._lock:
            known = self._known(grammar)
            self._wanted[seq_id] = grammar
            self._uses[grammar] += 1
            if known is None:
                self._waiting[seq_id] = grammar
        if known is None:
            self._worker.submit(self._work)
        else:
            self._on_ready(_ready(seq_id, 0, True, known))

    def ended(self, seq_id: int) -> None:
        """The sequence wants its grammar no more; one that wanted none is no matter."""
        with self._lock:
            self._waiting.pop(seq_id, None)
            grammar = self._wanted.pop(seq_id, None)
            if grammar is not None:
                self._uses[grammar] -= 1
                if not self._uses[grammar]:
                    del self._uses[grammar]
                    self._evict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """A fresh matcher. Of a grammar that was refused it allows end tokens only."""
        found = self._look_up(grammar) or self._worker.submit(self._build, grammar).result()
        if isinstance(found, GrammarRefused):
            return Matcher(LLMatcher(self._tokenizer(), "", log_level=0), self._ends)
        return Matcher(found.deep_copy(), self._ends)

    def close(self) -> None:
        """Let the worker end after what it builds; grammars that still wait are given up."""
        with self._lock:
            self._waiting.clear()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        """Build for the sequence that has waited longest, if one still waits."""
        with self._lock:
            if not self._waiting:
                return
            seq_id, grammar = self._waiting.popitem(last=False)
        begin_ns = self._clock.now_ns()
        found = self._look_up(grammar)
        cached = found is not None
        found = found or self._build(grammar)
        self._on_ready(_ready(seq_id, self._clock.now_ns() - begin_ns, cached, found))

    def _look_up(self, grammar: Grammar) -> LLMatcher | GrammarRefused | None:
        with self._lock:
            return self._known(grammar)

    def _known(self, grammar: Grammar) -> LLMatcher | GrammarRefused | None:
        """Under the lock."""
        found = self._compiled.get(grammar)
        if found is not None:
            self._compiled.move_to_end(grammar)
        return found

    def _build(self, grammar: Grammar) -> LLMatcher | GrammarRefused:
        built: LLMatcher | GrammarRefused
        try:
            built = compile_grammar(grammar, self._tokenizer(), self._vocab_logits)
        except GrammarRefused as refused:
            built = refused
        except BaseException as error:  # a panic too: the sequence that waits gets an answer
            built = GrammarRefused(_one_line(f"the grammar cannot be compiled: {error}"))
        with self._lock:
            self._compiled[grammar] = built
            self._evict()
        return built

    def _evict(self) -> None:
        """Under the lock: what is too much, but not what a live sequence wants."""
        excess = len(self._compiled) - self._cached_grammars
        if excess > 0:
            unused = (grammar for grammar in self._compiled if grammar not in self._uses)
            for grammar in list(islice(unused, excess)):
                del self._compiled[grammar]

    def _tokenizer(self) -> LLTokenizer:
        """Built for the first grammar: a server that is never asked for one does not pay."""
        with self._library_lock:
            if self._library is None:
                self._library = library_tokenizer(self._vocabulary, self._vocab_logits)
            return self._library


def _worker_with_a_large_stack() -> ThreadPoolExecutor:
    before = threading.stack_size(_STACK_BYTES)
    try:
        worker = ThreadPoolExecutor(1, "phasescope-grammar")
        worker.submit(int).result()  # the thread starts with its first task
    finally:
        threading.stack_size(before)
    return worker


def compile_grammar(grammar: Grammar, tokenizer: LLTokenizer, vocab_logits: int) -> LLMatcher:
    """A matcher at the beginning of the grammar. Raises GrammarRefused."""
    if len(grammar.source) > MAX_GRAMMAR_CHARACTERS:
        raise GrammarRefused(
            f"the grammar has {len(grammar.source)} characters; "
            f"{MAX_GRAMMAR_CHARACTERS} are allowed"
        )
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(tokenizer, _library_grammar(grammar), log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarRefused(_one_line(matcher.get_error()))
    warnings = matcher.get_grammar_warnings()
    # a function that is not strict may have keywords that are checked afterwards only
    if warnings and grammar.kind is not GrammarKind.TOOLS:
        raise GrammarRefused(_one_line(warnings[0]))
    if len(matcher.deep_copy().compute_ff_bytes()) > _MAX_FORCED_BYTES:
        raise GrammarRefused(f"the grammar forces more than {_MAX_FORCED_BYTES} bytes in one go")
    # the first mask, here rather than in a step: copies keep what the library learnt by it,
    # and it finds grammars that lead nowhere
    row = np.zeros(mask_words(vocab_logits), dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    if matcher.is_error() and "NoExtension" not in matcher.get_error():
        raise GrammarRefused(f"the grammar is too complex: {_one_line(matcher.get_error())}")
    if matcher.is_error() or not row.any() or _is_stuck(matcher):
        raise GrammarRefused("no text satisfies the grammar")
    _walk(matcher.deep_copy(), row, tokenizer.eos_tokens)
    return matcher


def _walk(matcher: LLMatcher, row: MaskRow, ends: list[int]) -> None:
    """A few steps ahead: what explodes on its first tokens does so here, not in a step."""
    for _ in range(_PROBED_TOKENS):
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        going_on = np.setdiff1d(allowed, ends)
        if not len(going_on):
            return
        matcher.consume_token(int(going_on[-1]))
        if matcher.is_stopped() and not matcher.is_error():
            return
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            raise GrammarRefused(f"the grammar is too complex: {_one_line(matcher.get_error())}")


def _is_stuck(matcher: LLMatcher) -> bool:
    return matcher.is_stopped() and not matcher.is_accepting()


def _library_grammar(grammar: Grammar) -> str:
    """The grammar in the library's own notation."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return _json_grammar('{"type": "object"}')
        case GrammarKind.JSON_SCHEMA:
            return _json_grammar(grammar.source)
        case GrammarKind.REGEX:
            # \d, \w and \s are those of ASCII, as in JSON schemas: nobody who writes \d
            # for a telephone number wants the digits of all scripts
            return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(grammar.source, 'dws')}/")
        case GrammarKind.TOOLS:
            return LLMatcher.grammar_from_lark(grammar.source)
        case GrammarKind.EBNF:
            try:
                return LLMatcher.grammar_from_lark(as_lark(grammar.source))
            except Exception as error:  # the converter raises what Python happens to raise
                reason = str(error) or type(error).__name__
                raise GrammarRefused(_one_line(reason)) from error


def _json_grammar(schema: str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)
    except ValueError as error:
        raise GrammarRefused(_one_line(str(error))) from error


def _one_line(text: str) -> str:
    """The library's message without its drawings of carets and its state."""
    if "regex parse error" in text:
        text = "invalid regex: " + text.split("\nerror: ")[-1].splitlines()[0]
    lines = [line.strip() for line in text.replace("<non-verbose/>", "").splitlines()]
    kept = [line for line in lines if line.strip("^ |") and "| " not in line[:8]]
    return "; ".join(kept)[:_ERROR_CHARACTERS] or "the grammar cannot be used"


def _ready(
    seq_id: int, compile_ns: int, cached: bool, found: LLMatcher | GrammarRefused
) -> GrammarReady:
    error = str(found) if isinstance(found, GrammarRefused) else None
    return GrammarReady(seq_id, compile_ns, cached, error)
