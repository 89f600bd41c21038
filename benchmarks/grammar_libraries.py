"""Two libraries for constrained decoding, on the default model's tokenizer.

Schemas come from the official JSON-Schema test suite (draft 2020-12), in the source distribution of
the `jsonschema` package. Measured are coverage (schemas that compile), correctness (instances that
are accepted or refused, and random walks under the mask that `jsonschema` validates: an invalid
text is a wrong answer, a valid one that is not allowed only a narrower choice), the first compile
time of a schema, and the time of one mask.

phasescope depends on llguidance only. To repeat the comparison install the rest apart:

    pip download --no-deps --no-binary :all: -d compare jsonschema==4.26.0
    tar -C compare -xf compare/jsonschema-4.26.0.tar.gz
    pip install --no-deps --target compare/xgrammar xgrammar==0.2.8 apache-tvm-ffi
    python benchmarks/grammar_libraries.py \\
        --suite compare/jsonschema-4.26.0/json/tests/draft2020-12 \\
        --xgrammar compare/xgrammar
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from telemetry.numbers.quantiles import quantile

HERE = Path(__file__).parent
WALKS, WALK_TOKENS = 4, 60
CLOSING = (b'"', b"}", b"]", b",")
LIBRARIES = ("llguidance", "xgrammar")


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


def bits(row: np.ndarray, vocab: int) -> np.ndarray:
    return np.unpackbits(row.view(np.uint8), bitorder="little")[:vocab]


def default_tokenizer() -> Any:
    from service.model_files.model_store import ensure_default_model
    from service.text.gguf_tokenizer import gguf_tokenizer

    return gguf_tokenizer(ensure_default_model(lambda line: None))


def groups_of(suite: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(suite.glob("*.json")):
        found += [{"file": path.stem, **group} for group in json.loads(path.read_text())]
    return found


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


def percentile(values: list[float], share: float) -> float:
    found = quantile(values, share)
    return math.nan if found is None else found


def run_one(name: str, suite: Path) -> dict[str, Any]:
    """The whole measurement of one library, in a process of its own."""
    tokenizer = default_tokenizer()
    vocab = range(tokenizer.vocab_size)
    special = [i for i in vocab if tokenizer.is_special(i)]
    tokens = [tokenizer.token_bytes(i) for i in vocab]
    for module in ("torch", name, "service.device.sampling.grammar"):
        importlib.import_module(module)  # not part of what is timed
    spelling, ends = tokenizer.backend_json(), list(tokenizer.eos_token_ids)
    begin = time.perf_counter()
    kinds = {"llguidance": Llguidance, "xgrammar": Xgrammar}
    library = kinds[name](tokens, special, ends, spelling)
    setup_ms = (time.perf_counter() - begin) * 1e3
    result, chooser = LibraryResult(), Chooser(tokenizer, name)
    for group in groups_of(suite):
        print(f"{group['file']}: {group['description']}", file=sys.stderr)
        check_group(library, group, tokenizer, chooser, result)
    return {
        "library": name,
        "setup_ms": setup_ms,
        "schemas": result.compiled + result.refused,
        "compiled": result.compiled,
        "refused": result.refused,
        "compile_ms_p50": percentile(result.compile_us, 0.5) / 1e3,
        "compile_ms_p99": percentile(result.compile_us, 0.99) / 1e3,
        "mask_us_p50": percentile(result.mask_us, 0.5),
        "mask_us_p99": percentile(result.mask_us, 0.99),
        "masks": len(result.mask_us),
        "valid_accepted": result.valid_accepted,
        "valid_refused": result.valid_refused,
        "invalid_refused": result.invalid_refused,
        "invalid_accepted": result.invalid_accepted,
        "walks_valid": result.walks_valid,
        "walks_invalid": result.walks_invalid,
        "walks_unfinished": result.walks_unfinished,
        "walks_stuck": result.walks_stuck,
        "wrong_by_file": result.wrong,
        "refusals": result.refusals,
    }


def in_process(name: str, suite: Path, folder: Path | None) -> dict[str, Any]:
    """A crash of one library is its result, not the end of the comparison."""
    paths = [str(HERE.parent), *([str(folder)] if folder else [])]
    command = [sys.executable, __file__, "--suite", str(suite), "--one", name]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        return {"library": name, "failed": done.returncode, "where": done.stderr[-1500:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(results: list[dict[str, Any]]) -> str:
    hidden = ("library", "wrong_by_file", "refusals")
    names = [key for key in results[0] if key not in hidden]
    lines = ["| | " + " | ".join(r["library"] for r in results) + " |"]
    lines.append("|---" * (len(results) + 1) + "|")
    for name in names:
        cells = [r.get(name, math.nan) for r in results]
        shown = [f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--xgrammar", type=Path, help="folder with xgrammar; left out if absent")
    parser.add_argument("--one", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "grammar_libraries.json")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_one(args.one, args.suite)))
        return
    results = [in_process("llguidance", args.suite, None)]
    if args.xgrammar:
        results.append(in_process("xgrammar", args.suite, args.xgrammar))
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"suite": "draft2020-12", "results": results}, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
