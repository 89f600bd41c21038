"""Parses and tokenizes bodies and validates outputs, mostly in worker processes.

It must not know the engine process, nor write responses.

- `request_types`, `decoding`, `schemas`: a body becomes one checked GenerationRequest; that of
  /v1/responses by `responses_body`, `responses_request`. `field_types` has the types of fields that
  several bodies share.
- `compat`: fields of other servers' dialects of OpenAI's API. `tools`: functions that a chat may
  call.
- `embedding_bodies`, `embedding_rendering`: the body of an embeddings request, and its answer.
- `token_bodies`, `token_reader`: `POST /tokenize` and `POST /detokenize`.
- `chat_prompt`: what of a conversation reaches the chat template.
- `formats`, `json_schemas`: constraints on the output, and whether an output satisfies them.
- `prompting`: tokenizing, the context limit.
- `score_rendering`: scores of a prompt's tokens as JSON.
- `pool`, `worker_process`, `worker`, `frames`: the worker processes and their protocol.
"""
