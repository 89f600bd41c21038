"""The gateway process: OpenAI-compatible HTTP routes, and the client of the engine process.

It must not import torch, nor draw, nor diagnose. A request passes the packages in this order:

- `http`: connections, limits, keys.
- `routes`: the ASGI application.
- `generation`: serves one generation request.
- `ingest`: its body becomes prompts, in worker processes.
- `engine_client`: its sequences go to the engine process, and tokens come back.
- `fleet`: the same for engines on other machines.

`processes` has several gateway processes behind one address (`--gateways`).

`server` runs all of that, `server_state` is what its routes share, `errors` has the errors that
clients see.
"""
