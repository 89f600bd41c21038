"""The format of SmolLM2: one tag around a list of all calls.

    <tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_call>

Its chat template knows no tools; they are described in the system message. Source of the format:
the model card of HuggingFaceTB/SmolLM2-1.7B-Instruct. The 135M model was not trained on it: it is
given the same format as its larger sister.
"""

from __future__ import annotations

from service.text.tools.tool_format import ToolFormat, ToolFormatName

SMOLLM2 = ToolFormat(
    name=ToolFormatName.SMOLLM2,
    marker="<tool_call>",
    opening="[",
    separator=", ",
    close="]</tool_call>",
)
