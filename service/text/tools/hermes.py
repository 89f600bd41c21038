"""The format of Hermes 2 and 3, Qwen 2.5 and 3, and many others: a tag and an object each call.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

It is also what a model is asked to write whose chat template knows no tools. Source of the format:
the chat templates of NousResearch/Hermes-3 and Qwen/Qwen3.
"""

from __future__ import annotations

from service.text.tools.tool_format import ToolFormat, ToolFormatName

HERMES = ToolFormat(
    name=ToolFormatName.HERMES,
    marker="<tool_call>",
    opening="\n",
    close="\n</tool_call>",
    between="\n",
)
