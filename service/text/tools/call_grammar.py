"""The grammar that holds an output to a tool format and to the functions' schemas.

It is Lark in the dialect of llguidance, which has JSON schemas within rules, special tokens by
number, and lazy rules: text goes on freely until the marker is complete, and then what follows is a
call. Sources: llguidance's docs/syntax.md ("Tool calling", "Special tokens").

    NEEDED          start: calls
    POSSIBLE        start: TEXT | lead calls          lead is any text up to the marker
    with an answer  start: %json {...} | calls        the text has a schema of its own
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.text.tools.tool_format import CALL_ID_CHARACTERS, ToolFormat


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function that may be called; `schema` is that of `schemas.arguments_schema`."""

    name: str
    schema: dict[str, Any]


def call_grammar(
    form: ToolFormat,
    functions: Sequence[CallableFunction],
    *,
    special_ids: Mapping[str, int],
    needed: bool,
    most_calls: int,
    answer: dict[str, Any] | None = None,
) -> str:
    """The grammar's text.

    `special_ids` are the marks of the format that are special tokens of the vocabulary. `needed`:
    the output is nothing but calls. Else it may be text, which satisfies the schema `answer` if
    there is one.
    """
    assert functions, "nothing can be called"
    assert most_calls > 0, most_calls
    most = most_calls if form.most_calls is None else min(most_calls, form.most_calls)
    writer = _Writer(form, special_ids)
    rules = [f"start: {_start(form, needed, answer)}"]
    if not needed and answer is None:
        rules += writer.text_rules()
    rules += writer.call_rules(most)
    names = [f"call_{index}" for index in range(len(functions))]
    rules.append(f"call: {' | '.join(names)}")
    for name, function in zip(names, functions, strict=True):
        arguments = f"%json {json.dumps(function.schema)}"
        before = writer.literal(form.head + function.name)
        rules.append(f"{name}: {before} {writer.middle()} {arguments} {writer.literal(form.tail)}")
    return "\n".join(["%llguidance {}", *rules]) + "\n"


def _start(form: ToolFormat, needed: bool, answer: dict[str, Any] | None) -> str:
    if needed:
        return "calls" if form.marker_needed else "calls | rest"
    if answer is not None:
        return f"calls | %json {json.dumps(answer)}"
    return "TEXT | lead rest" if form.marker_needed else "TEXT | lead rest | rest"


class _Writer:
    """Writes parts of a format as Lark."""

    def __init__(self, form: ToolFormat, special_ids: Mapping[str, int]) -> None:
        self._form = form
        self._special_ids = special_ids
        texts = sorted(special_ids, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None

    def literal(self, text: str) -> str:
        """A text that must come exactly so; special tokens within it by their numbers."""
        parts = [text] if self._split is None else self._split.split(text)
        return " ".join(
            f"<[{self._special_ids[part]}]>" if part in self._special_ids else json.dumps(part)
            for part in parts
            if part
        )

    def middle(self) -> str:
        """Between a function's name and its arguments."""
        if not self._form.id_mark:
            return self.literal(self._form.middle)
        written_id = f"/[a-zA-Z0-9]{{{CALL_ID_CHARACTERS}}}/"
        return f"{self.literal(self._form.id_mark)} {written_id} {self.literal(self._form.middle)}"

    def text_rules(self) -> list[str]:
        """Free text, alone and before the first call."""
        form = self._form
        text = "(?s:.*)"
        if not form.marker_needed:  # a first character that begins a call begins no text
            text = f"([^{re.escape(form.head[0])}](?s:.*))?"
        # a lazy rule wins as soon as its end is there, so no text goes on past the marker
        lead = "lead" if form.marker in self._special_ids else "lead[lazy]"
        return [f"TEXT: /{text}/", f"{lead}: TEXT {self.literal(form.marker)}"]

    def call_rules(self, most: int) -> list[str]:
        """`calls` with the first marker, `rest` after it."""
        form = self._form
        more = f"{{0,{most - 1}}}"
        one = f"{self.literal(form.opening)} call"
        close = self.literal(form.close)
        if form.separator is not None:
            rest = f"{one} ({self.literal(form.separator)} call){more} {close}"
        else:
            again = f"{self.literal(form.between)} {self.literal(form.marker)} {one} {close}"
            rest = f"{one} {close} ({again}){more}"
        if most == 1:
            rest = f"{one} {close}"
        return [f"calls: {self.literal(form.marker)} rest", f"rest: {rest}"]
