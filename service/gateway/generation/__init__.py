"""Serving one generation request. It must not know Starlette's routes, nor how bodies are parsed.

- `handler`: the request from its headers to its last byte, and every way in which it can end.
- `ingest_task`, `submitting`: its body becomes prompts, and these become sequences of the engine.
- `output_processor`, `choice`, `reasoning_text`: its tokens become text.
- `answer_writer`: text becomes response bodies and server-sent events: those of chats and texts in
  `responses`, those of /v1/responses in `responses_writer` and `response_items`; `logprobs` are
  those of both.
- `prompt_echo`: what an answer says about its prompt: its text, and scores of its tokens.
- `tool_text`, `tool_outcome`, `tool_results`: the calls in an answer become JSON, are checked and
  recorded, and are remembered until their results come.
- `embeddings`: a request for embeddings, whose inputs are sequences without tokens.
- `delivery`: these are sent.
- `request_recorder`: the request's facts.
- `state`: what all requests share.
"""
