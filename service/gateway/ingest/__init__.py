"""Parses and tokenizes bodies and validates outputs, mostly in worker processes.

It must not know the engine process, nor write responses.

- `request_types`, `decoding`, `schemas`: a body becomes one checked GenerationRequest; that of
  /v1/responses by `responses_body`, `responses_request`.
- `chat_prompt`: what of a conversation reaches the chat template.
- `formats`, `json_schemas`: constraints on the output, and whether an output satisfies them.
- `prompting`: tokenizing, the context limit.
- `pool`, `worker_process`, `worker`, `frames`: the worker processes and their protocol.
"""
