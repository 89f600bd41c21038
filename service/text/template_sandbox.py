"""The sandbox that chat templates run in: they come from model files, and their data from clients.

Jinja's immutable sandbox keeps a template away from Python. What it leaves open is size: a text
times a client's number, or a loop that never stops writing. Both are bounded here; how long a
template may run is bounded where bodies are read, in a process that can be killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 32 << 20
"""Of a rendered conversation, and of any text that a template multiplies: more than any context."""
_MAX_EXPONENT = 64


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja's Extension declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Refuses products and powers that would not fit in memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """`left * right` or `left ** right`. Raises jinja2.TemplateError if that is too large."""
        if operator == "**" and not -_MAX_EXPONENT <= right <= _MAX_EXPONENT:
            _refuse(f"a power of more than {_MAX_EXPONENT}")
        for repeated, count in ((left, right), (right, left)):
            if hasattr(repeated, "__len__") and len(repeated) * count > MAX_CHARACTERS:
                _refuse(f"a text of more than {MAX_CHARACTERS} characters")
        return super().call_binop(context, operator, left, right)


def sandbox(date_text: Callable[[str], str]) -> BoundedEnvironment:
    """An environment with what chat templates expect; `date_text` is their `strftime_now`."""
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = date_text
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes it for HTML. The parameters are those that
    transformers gives templates."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
