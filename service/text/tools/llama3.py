"""The JSON format of Llama 3.1, 3.2 and 3.3: one object, `parameters` instead of `arguments`.

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}

The special token may be missing, so any answer that begins with a brace is a call. An answer has
one call: the model's template refuses a conversation whose turn has more. Source of the format: the
chat templates of meta-llama/Llama-3.1 and 3.2.
"""

from __future__ import annotations

from service.text.tools.tool_format import ToolFormat, ToolFormatName

LLAMA3 = ToolFormat(
    name=ToolFormatName.LLAMA3,
    marker="<|python_tag|>",
    middle='", "parameters": ',
    marker_needed=False,
    most_calls=1,
)
