"""Which format a model speaks, and what its chat template is given of tools and calls.

A template that knows tools gets them as `tools`, and calls and results as messages of their own.
For one that does not, tools are described in the system message, calls are written into the text of
the assistant, and results come from the user, between tags: that is the stated fallback, and how
well a model follows it depends on the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from service.text.tools.hermes import HERMES
from service.text.tools.llama3 import LLAMA3
from service.text.tools.mistral import MISTRAL, MISTRAL_ARGS, MISTRAL_CALL_ID
from service.text.tools.smollm2 import SMOLLM2
from service.text.tools.tool_format import (
    CALL_ID_CHARACTERS,
    ToolFormat,
    ToolFormatName,
    WrittenCall,
)

AUTO = "auto"
FORMATS: dict[ToolFormatName, ToolFormat] = {
    form.name: form for form in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, MISTRAL_CALL_ID, SMOLLM2)
}
_TOOLS_VARIABLE = "tools"
_SMOLLM2_NAME = "named SmolLM"
_LLAMA3_ROLE = "ipython"
# a template with one of these has a format of its own, though it may have a tag of ours too
_OTHER_FORMATS = ("<function=", "<arg_key>", "<tool_sep>")


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """A model's format. `in_template`: its chat template knows tools."""

    form: ToolFormat
    in_template: bool

    def messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """A conversation as the template takes it. `tools` are those to describe; messages of the
        assistant may have `tool_calls`, and there may be messages of the role `tool`."""
        if self.in_template:
            return [self._for_template(message) for message in messages]
        found: list[dict[str, Any]] = []
        for is_result, run in groupby(messages, lambda message: message["role"] == "tool"):
            if is_result:
                content = "\n".join(map(_result_text, run))
                found.append({"role": "user", "content": content})
            else:
                found += map(self._as_text, run)
        return self._with_description(found, tools) if tools else found

    def _for_template(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments become objects, as templates expect; ids become short where they must be."""
        found = dict(message)
        calls = message.get("tool_calls")
        if calls:
            found["tool_calls"] = [
                {
                    "id": self._template_id(call["id"]),
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": json.loads(call["function"]["arguments"]),
                    },
                }
                for call in calls
            ]
        if "tool_call_id" in found:
            found["tool_call_id"] = self._template_id(found["tool_call_id"])
        return found

    def _template_id(self, call_id: str) -> str:
        return short_id(call_id) if self.form.short_ids else call_id

    def _as_text(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message that any template knows; it is no result."""
        content = message["content"]
        found = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = message.get("tool_calls")
        if calls:
            written = [
                WrittenCall(call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in calls
            ]
            text = self.form.write(written)
            found["content"] = f"{content}\n{text}" if content else text
        return found

    def _with_description(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        text = self._description(tools)
        if messages and messages[0]["role"] in ("system", "developer"):
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]

    def _description(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """What a model without a template for tools is told of them."""
        example = self.form.write([WrittenCall("", "NAME", '{"PARAMETER": "VALUE"}')])
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        return (
            "You can call functions to answer the user. These are the functions, each with a JSON "
            f"schema of its parameters:\n<tools>\n{listed}\n</tools>\n"
            "If a function helps, answer with the call and nothing else, in exactly this form:\n"
            f"{example}\n"
            "The result of a call is given to you between <tool_response> and </tool_response>."
        )


def _result_text(message: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def short_id(call_id: str) -> str:
    """An id of nine letters and digits, for templates that refuse others: the end of a longer one,
    where ids differ."""
    kept = "".join(
        character for character in call_id if character.isascii() and character.isalnum()
    )
    return kept[-CALL_ID_CHARACTERS:].rjust(CALL_ID_CHARACTERS, "0")


def tool_dialect(template: str | None, setting: str = AUTO) -> ToolDialect:
    """The dialect of a model by its chat template, or by the name in `--tool-format`."""
    template = template or ""
    knows_tools = _TOOLS_VARIABLE in template
    if setting != AUTO:
        return ToolDialect(FORMATS[ToolFormatName(setting)], knows_tools)
    if not knows_tools:
        return ToolDialect(SMOLLM2 if _SMOLLM2_NAME in template else HERMES, False)
    form = _format_in(template)
    return ToolDialect(form or HERMES, form is not None)


def _format_in(template: str) -> ToolFormat | None:
    """The format that a template writes calls of earlier turns in; None if it is none of ours."""
    if any(mark in template for mark in _OTHER_FORMATS):
        return None
    if MISTRAL.marker in template:
        if MISTRAL_CALL_ID.id_mark in template:
            return MISTRAL_CALL_ID
        return MISTRAL_ARGS if MISTRAL_ARGS.middle in template else MISTRAL
    if HERMES.marker in template:
        return HERMES
    return LLAMA3 if any(mark in template for mark in (LLAMA3.marker, _LLAMA3_ROLE)) else None
