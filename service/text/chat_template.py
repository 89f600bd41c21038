"""Renders a model's chat template, and says what a template reads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes

from service.text.template_sandbox import MAX_CHARACTERS, sandbox

_MARKS = re.compile(r"<<CONTINUE([0-9]+)>>")  # one that no message has shows where the last ends


class TemplateError(Exception):
    """The messages cannot be rendered; the message is one line."""


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """`reads` are the names of variables in the template, `literals` its constant texts."""

    reads: frozenset[str]
    literals: frozenset[str]

    @property
    def knows_developer(self) -> bool:
        """Whether the template tells the role `developer` apart."""
        return "developer" in self.literals


def no_dates(form: str) -> str:
    """The `strftime_now` of whoever gives none."""
    raise jinja2.TemplateError("no date is known here")


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
    date_text: Callable[[str], str] = no_dates,
) -> str:
    """The prompt for `messages` (role and content). Raises TemplateError.

    `variables` are further ones of the template. With `continue_final_message` the prompt ends
    with the last message's content, whatever the template puts after it; Hugging Face transformers
    has that option.
    """
    shown = [dict(message) for message in messages]
    mark = ""
    if continue_final_message:
        mark = _unused_mark(shown)
        # a space after it shows whether the template strips contents
        shown[-1]["content"] = f"{shown[-1]['content']}{mark} "
    rendered = _render(
        template,
        date_text,
        {
            "tools": None,
            "documents": None,
            **(variables or {}),
            "messages": shown,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "add_generation_prompt": add_generation_prompt,
        },
    )
    return _before(mark, rendered) if mark else rendered


@lru_cache(maxsize=8)
def template_facts(template: str) -> TemplateFacts:
    """What a template reads. Raises TemplateError if it is no template."""
    try:
        tree = sandbox(no_dates).parse(template)
    except jinja2.TemplateError as error:
        raise _error(error) from error
    reads = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
    literals = {one.value for one in tree.find_all(nodes.Const) if isinstance(one.value, str)}
    return TemplateFacts(frozenset(reads), frozenset(literals))


def _unused_mark(messages: Sequence[Mapping[str, Any]]) -> str:
    """A short text that is in no content. Contents come from clients: they are read once."""
    used = {
        found[1] for message in messages for found in _MARKS.finditer(str(message.get("content")))
    }
    number = next(number for number in itertools.count() if str(number) not in used)
    return f"<<CONTINUE{number}>>"


def _before(mark: str, rendered: str) -> str:
    """The prompt up to the mark in it. Raises TemplateError if the template has dropped it."""
    before, found, after = rendered.rpartition(mark)
    if not found:
        raise TemplateError(
            "the model's chat template leaves out a part of the last message, so it cannot be "
            "continued"
        )
    return before if after.startswith(" ") else before.rstrip()


def _render(template: str, date_text: Callable[[str], str], variables: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    characters = 0
    try:
        for piece in _compiled(template, date_text).generate(**variables):
            pieces.append(piece)
            characters += len(piece)
            if characters > MAX_CHARACTERS:
                raise TemplateError(
                    f"the rendered messages have more than {MAX_CHARACTERS} characters"
                )
    except (
        jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
        RecursionError,
    ) as error:  # fmt: skip
        raise _error(error) from error
    return "".join(pieces)


def _error(error: Exception) -> TemplateError:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TemplateError(f"the model's chat template refuses these messages: {first}")


@lru_cache(maxsize=8)
def _compiled(template: str, date_text: Callable[[str], str]) -> jinja2.Template:
    return sandbox(date_text).from_string(template)
