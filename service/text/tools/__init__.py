"""Function calls as text: how models write them, how they are told of them, how they are read.

- `tool_format`: the parts that a written call has; `hermes`, `llama3`, `mistral`, `smollm2`: one
  file a format.
- `dialect`: which of them a model's chat template speaks, and what a template is given.
- `schemas`, `call_grammar`: the grammar that holds an output to the format and to each function's
  schema.
- `json_span`, `parser`: an output that arrives in pieces, told apart into text and calls.

All of it is pure: no clock, no sockets, no model.
"""
