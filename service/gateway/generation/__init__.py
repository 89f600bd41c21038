"""Serving one generation request. It must not know Starlette's routes, nor how bodies are parsed.

- `handler`: the request from its headers to its last byte, and every way in which it can end.
- `ingest_task`, `submitting`: its body becomes prompts, and these become sequences of the engine.
- `output_processor`, `choice`, `reasoning_text`: its tokens become text.
- `answer_writer`: text becomes response bodies and server-sent events: those of chats and texts in
  `responses`, those of /v1/responses in `responses_writer` and `response_items`; `logprobs` are
  those of both.
- `delivery`: these are sent.
- `request_recorder`: the request's facts.
- `state`: what all requests share.
"""
