"""What one library does with a group of the suite: compiling, judging instances, random walks."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.grammar_libraries.libraries import Library, Matching

WALKS, WALK_TOKENS = 4, 60
CLOSING = (b'"', b"}", b"]", b",")


def bits(row: np.ndarray, vocab: int) -> np.ndarray:
    return np.unpackbits(row.view(np.uint8), bitorder="little")[:vocab]


def accepts(matching: Matching, tokens: Sequence[int], ends: Sequence[int], vocab: int) -> bool:
    """Whether the mask allows these tokens in turn and then the end."""
    for token_id in tokens:
        if not matching.accept(token_id):
            return False
    return bool(bits(matching.mask(), vocab)[list(ends)].any())


class LibraryResult:
    """What came of one library over the suite."""

    def __init__(self) -> None:
        self.compiled = self.refused = self.crashed = 0
        self.valid_accepted = self.valid_refused = 0
        self.invalid_refused = self.invalid_accepted = 0
        self.walks_valid = self.walks_invalid = self.walks_unfinished = self.walks_stuck = 0
        self.compile_us: list[float] = []
        self.mask_us: list[float] = []
        self.wrong: dict[str, int] = {}
        self.refusals: dict[str, int] = {}

    def blame(self, group: dict[str, Any]) -> None:
        self.wrong[group["file"]] = self.wrong.get(group["file"], 0) + 1


def timed_mask(matching: Matching, result: LibraryResult) -> np.ndarray:
    begin = time.perf_counter()
    row = matching.mask()
    result.mask_us.append((time.perf_counter() - begin) * 1e6)
    return row


class Chooser:
    """Picks tokens at random; those that close something are likelier, so that texts end."""

    def __init__(self, tokenizer: Any, seed: str) -> None:
        self.ends = list(tokenizer.eos_token_ids)
        vocab = range(tokenizer.vocab_size)
        self._closing = np.array([tokenizer.token_bytes(i)[:1] in CLOSING for i in vocab])
        self.chance = random.Random(seed)

    def pick(self, allowed: np.ndarray) -> int | None:
        """A token, or None for the end."""
        can_end = allowed[self.ends].any()
        allowed[self.ends] = 0
        if can_end and (not allowed.any() or self.chance.random() < 0.5):
            return None
        closing = allowed & self._closing
        wanted = closing if closing.any() and self.chance.random() < 0.5 else allowed
        return int(self.chance.choice(np.nonzero(wanted)[0]))


def walk(matching: Matching, tokenizer: Any, chooser: Chooser, result: LibraryResult) -> str | None:
    """A random complete text."""
    tokens: list[int] = []
    for _ in range(WALK_TOKENS):
        allowed = bits(timed_mask(matching, result), tokenizer.vocab_size).copy()
        if not allowed.any():
            result.walks_stuck += 1
            return None
        picked = chooser.pick(allowed)
        if picked is None:
            return str(tokenizer.decode(tokens))
        if not matching.accept(picked):
            result.walks_stuck += 1
            return None
        tokens.append(picked)
    result.walks_unfinished += 1
    return None


def check_group(
    library: Library, group: dict[str, Any], tokenizer: Any, chooser: Chooser, result: LibraryResult
) -> None:
    import jsonschema

    schema, vocab, ends = group["schema"], tokenizer.vocab_size, tokenizer.eos_token_ids
    begin = time.perf_counter()
    try:
        first = library.compile(schema)
        timed_mask(first, result)
    except ValueError as error:
        result.refused += 1
        reason = str(error)[:60]
        result.refusals[reason] = result.refusals.get(reason, 0) + 1
        return
    result.compile_us.append((time.perf_counter() - begin) * 1e6)
    result.compiled += 1
    for test in group["tests"]:
        tokens = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), False)
        accepted = accepts(library.compile(schema), tokens, ends, vocab)
        if test["valid"]:
            result.valid_accepted += accepted
            result.valid_refused += not accepted
        else:
            result.invalid_accepted += accepted
            result.invalid_refused += not accepted
            if accepted:
                result.blame(group)
    checker = jsonschema.Draft202012Validator(schema)
    for _ in range(WALKS):
        text = walk(library.compile(schema), tokenizer, chooser, result)
        if text is None:
            continue
        try:
            good = checker.is_valid(json.loads(text))
        except (ValueError, RecursionError):
            good = False
        except Exception:  # a reference that the validator cannot follow
            continue
        result.walks_valid += good
        result.walks_invalid += not good
        if not good:
            result.blame(group)
