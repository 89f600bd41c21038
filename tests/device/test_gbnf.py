"""Grammars of llama.cpp are read as the grammar library reads them, in time that a text bounds."""

from __future__ import annotations

import sys
from time import thread_time_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from service.device.sampling.gbnf import as_lark, is_lark
from service.engine.plan import Grammar, GrammarKind
from service.engine.vocabulary import MAX_GRAMMAR_CHARACTERS
from service.text.dummy_tokenizer import dummy_tokenizer
from tests.support.worlds.grammar_world import World

JSON_GRAMMAR = r"""
# of llama.cpp, shortened
root   ::= object
value  ::= object | array | string | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" hex-digit{4}) )* "\"" ws
hex-digit ::= [0-9a-fA-F]
ws ::= | " " | "\n" [ \t]{0,20}
"""
CHAIN = """
root ::= first
first ::= camelCase root?
camelCase ::= last-one
last-one ::= "x"
"""


@pytest.mark.parametrize("text", [JSON_GRAMMAR, CHAIN], ids=["json", "chain"])
def test_a_translation_is_the_librarys_own(text: str) -> None:
    """But for empty lines."""
    ours, theirs = as_lark(text).splitlines(), gbnf_to_lark(text).splitlines()

    assert [line for line in ours if line] == [line for line in theirs if line]


pieces = ("start", "%llguidance", "::=", ":", "x", "_", " ", "\t", "\n", "\r", "\v", "\u2003")


@given(st.lists(st.sampled_from(pieces), max_size=12).map("".join))
def test_which_notation_it_is_is_the_librarys_own_guess(text: str) -> None:
    assert is_lark(text) == is_lark_syntax(text)


def _guess_ns(lines: int) -> int:
    """Of processor time, for a text of so many empty lines."""
    times = []
    for _ in range(5):
        begin_ns = thread_time_ns()
        is_lark("\n" * lines)
        times.append(thread_time_ns() - begin_ns)
    return min(times)


def test_empty_lines_are_read_once() -> None:
    """A text eight times as long was guessed in sixty-four times the time."""
    assert _guess_ns(1 << 17) < 32 * max(1, _guess_ns(1 << 14))


def _calls(text: str) -> int:
    """Of Python functions, while a grammar is translated."""
    count = 0

    def note(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        as_lark(text)
    finally:
        sys.setprofile(before)
    return count


def test_rules_in_the_worst_order_cost_no_more_each_when_there_are_more_of_them() -> None:
    """Each leads to the next one, so only from the last can it be known that all are terminals."""

    def chain(rules: int) -> str:
        links = [f"r{index} ::= r{index + 1}" for index in range(rules)]
        return "\n".join(["root ::= r0 root?", *links, f'r{rules} ::= "b"'])

    assert _calls(chain(400)) < 2.5 * _calls(chain(200))


def test_the_longest_text_of_empty_lines_is_refused_as_any_other() -> None:
    world = World(dummy_tokenizer("tiny"))
    told = world.compiled(1, Grammar(GrammarKind.EBNF, "\n" * MAX_GRAMMAR_CHARACTERS))
    world.compiler.close()

    assert told.error == "No 'root' rule found"
