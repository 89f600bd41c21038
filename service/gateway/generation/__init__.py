"""Serving one generation request. It must not know Starlette's routes, nor how bodies are parsed.

- `handler`: the request from its headers to its last byte, and every way in which it can end.
- `ingest_task`, `submitting`: its body becomes prompts, and these become sequences of the engine.
- `output_processor`, `choice`: its tokens become text.
- `responses`, `delivery`: text becomes response bodies and server-sent events, and these are sent.
- `request_recorder`: the request's facts.
- `state`: what all requests share.
"""
