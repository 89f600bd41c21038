"""Grammars are compiled once, refused with a reason, and never the end of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from typing import Any, cast

import pytest

from service.device.sampling.grammar_compiler import GrammarCompiler
from service.engine.inbox import GrammarReady
from service.engine.plan import Grammar, GrammarKind
from service.gateway.engine_client.vocabulary import vocabulary_of
from service.gateway.ingest.json_schemas import schema_error
from service.text.dummy_tokenizer import dummy_tokenizer
from telemetry.facts.clock import MonotonicClock
from tests.support.worlds.grammar_world import World, regex, schema

GENEROUS_S = 60.0


def test_equal_grammars_are_compiled_once_and_the_worker_reports_it() -> None:
    world = World(dummy_tokenizer("tiny"))
    first = world.compiled(1, schema({"type": "boolean"}))
    second = world.compiled(2, schema({"type": "boolean"}))
    world.compiler.close()

    assert (first.cached, first.error, first.compile_ns > 0) == (False, None, True)
    assert second == GrammarReady(2, 0, True, None)
    assert world.tellers[0].startswith("phasescope-grammar")


def test_the_cache_is_bounded_and_what_fell_out_still_works() -> None:
    world = World(dummy_tokenizer("tiny"), cached_grammars=2)
    for seq_id, pattern in enumerate(["a", "b", "c", "a"]):
        assert not world.compiled(seq_id, regex(pattern)).cached
        world.compiler.ended(seq_id)
    assert world.compiler.matcher(regex("b")).allows([98, 256]) == 2
    world.compiler.close()


def test_what_live_sequences_want_stays_and_the_rest_is_bounded() -> None:
    """A step that starts a sequence finds its grammar, whatever others ask for."""
    world = World(dummy_tokenizer("tiny"), cached_grammars=1)
    for seq_id, pattern in enumerate("abc"):
        assert not world.compiled(seq_id, regex(pattern)).cached
    assert world.compiled(3, regex("a")).cached
    for seq_id in range(4):
        world.compiler.ended(seq_id)

    assert world.compiled(4, regex("a")).cached
    assert not world.compiled(5, regex("b")).cached
    world.compiler.close()


def test_a_grammar_whose_sequence_has_ended_is_not_built() -> None:
    """Clients that ask for slow grammars and leave cost others no wait."""
    told: Queue[GrammarReady] = Queue()
    goes_on = threading.Event()

    def hear(ready: GrammarReady) -> None:
        told.put(ready)
        if ready.seq_id == 0:  # it keeps the worker
            goes_on.wait(GENEROUS_S)

    vocabulary = vocabulary_of(dummy_tokenizer("tiny"))
    compiler = GrammarCompiler(vocabulary, 300, MonotonicClock(), hear)
    compiler.request(0, regex("a"))
    assert told.get(timeout=GENEROUS_S).seq_id == 0
    for seq_id in range(1, 20):
        compiler.request(seq_id, regex(f"b{seq_id}"))
        compiler.ended(seq_id)
    compiler.request(20, regex("c"))
    goes_on.set()

    assert told.get(timeout=GENEROUS_S).seq_id == 20
    compiler.close()


class Panic(BaseException):
    """What a library in Rust raises where it would end a process of its own."""


class Panicking:
    """A vocabulary on which the library panics."""

    end_token_ids, special_ids, tokenizer_json = (256,), (), ""

    @property
    def token_bytes(self) -> tuple[bytes, ...]:
        raise Panic("index out of bounds")


def test_a_panic_of_the_library_is_a_refusal_and_not_the_end_of_the_worker() -> None:
    """A sequence that hears nothing would wait until its deadline."""
    told: Queue[GrammarReady] = Queue()
    compiler = GrammarCompiler(cast(Any, Panicking()), 300, MonotonicClock(), told.put)
    for seq_id in range(2):
        compiler.request(seq_id, regex("ab"[seq_id]))

        answer = told.get(timeout=GENEROUS_S)
        assert answer.seq_id == seq_id
        assert answer.error == "the grammar cannot be compiled: index out of bounds"
    compiler.close()


REFUSED = {
    regex("(a"): "unclosed group",
    regex("a{2,1}"): "repetition",
    regex("(?=a)b"): "look-around",
    regex(r"(a)\1"): "backreferences",
    regex(r"[^\s\S]"): "no text satisfies",
    regex("x{100000}"): "forces more than",
    regex("a" * 70_000): "characters",
    regex("a?" * 3000): "too complex",
    Grammar(GrammarKind.EBNF, "root ::= ("): "Expected",
    Grammar(GrammarKind.EBNF, "start: x"): 'unknown name: "x"',
    Grammar(GrammarKind.EBNF, 'start: "a" start'): "forces more than",
    schema({"type": "string", "minLength": 3, "maxLength": 2}): "minLength",
    schema({"type": "integer", "minimum": 3, "maximum": 2}): "minimum",
    schema({"allOf": [{"type": "string"}, {"type": "integer"}]}): "Unsatisfiable",
    schema({"$ref": "#"}): "no text satisfies",
    schema({"$ref": "https://example.com/x"}): "https://example.com/x",
    schema({"type": "array", "uniqueItems": True}): "uniqueItems",
    schema({"not": {"type": "null"}, "x-guidance": {"lenient": True}}): "not",
    schema({"type": "string", "format": "shape"}): "shape",
}


@pytest.mark.parametrize(("grammar", "part"), REFUSED.items())
def test_an_unsupported_grammar_is_refused_with_one_stable_line(
    grammar: Grammar, part: str
) -> None:
    errors = []
    for _ in range(2):
        world = World(dummy_tokenizer("tiny"))
        fresh, cached = world.compiled(1, grammar), world.compiled(2, grammar)
        world.compiler.close()
        assert cached.cached
        assert fresh.error == cached.error
        errors.append(fresh.error)

    assert errors[0] is not None
    assert errors[0] == errors[1]
    assert part in errors[0]
    assert "\n" not in errors[0]


def test_a_long_chain_of_rules_does_not_end_the_process() -> None:
    rules = [f"r{i}: r{i + 1}" for i in range(5000)]
    chain = Grammar(GrammarKind.EBNF, "\n".join(["start: r0", *rules, 'r5000: "b"']))
    world = World(dummy_tokenizer("tiny"))

    assert world.compiled(1, chain).error is None
    assert world.compiler.matcher(chain).allows([98, 256]) == 2
    world.compiler.close()


LEADS_NOWHERE = """
from service.engine.plan import Grammar, GrammarKind
from service.text.dummy_tokenizer import dummy_tokenizer
from tests.support.worlds.grammar_world import World

rules = [f"r{i}: r{i + 1}" for i in range(3000)]
world = World(dummy_tokenizer("tiny"))
print(world.compiled(1, Grammar(GrammarKind.EBNF, "\\n".join(["start: r0", *rules]))).error)
world.compiler.close()
"""


def test_a_chain_of_rules_that_leads_nowhere_is_refused_whatever_the_environment_says() -> None:
    """With RUST_BACKTRACE the library would take the stack once for each rule, for minutes."""
    ended = subprocess.run(
        [sys.executable, "-c", LEADS_NOWHERE],
        env={**os.environ, "RUST_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        check=False,
    )

    assert 'unknown name: "r3000"' in ended.stdout, ended.stderr


def test_the_benchmark_has_twenty_good_schemas_and_twenty_bad_ones() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "data" / "schemas.json"
    data = json.loads(path.read_text())
    world = World(dummy_tokenizer("tiny"))
    good = [world.compiled(i, schema(one["schema"])).error for i, one in enumerate(data["valid"])]
    bad = [
        schema_error(json.dumps(one["schema"]))
        or world.compiled(100 + i, schema(one["schema"])).error
        for i, one in enumerate(data["invalid"])
    ]
    world.compiler.close()

    assert good == [None] * 20
    assert all(bad)
    assert len(set(bad)) == 20
