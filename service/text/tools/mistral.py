"""The formats of Mistral: a list of objects, and since 2025 names and arguments between tokens.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
    [TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}

The words in brackets are special tokens where the vocabulary has them. Ids have nine letters and
digits; the templates refuse others. In the third format the model writes the id itself. Source of
the formats: the chat templates of mistralai's instruct models of versions 3, 13 and 11.
"""

from __future__ import annotations

from service.text.tools.tool_format import ToolFormat, ToolFormatName

MISTRAL = ToolFormat(
    name=ToolFormatName.MISTRAL,
    marker="[TOOL_CALLS]",
    opening=" [",
    separator=", ",
    close="]",
    short_ids=True,
)
MISTRAL_ARGS = ToolFormat(
    name=ToolFormatName.MISTRAL_ARGS,
    marker="[TOOL_CALLS]",
    head="",
    middle="[ARGS]",
    tail="",
    short_ids=True,
)
MISTRAL_CALL_ID = ToolFormat(
    name=ToolFormatName.MISTRAL_CALL_ID,
    marker="[TOOL_CALLS]",
    head="",
    middle="[ARGS]",
    tail="",
    id_mark="[CALL_ID]",
    short_ids=True,
)
