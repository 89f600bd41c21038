"""The gateway's client of the engine process. It must not know HTTP or the OpenAI API.

- `client`, `engine_protocol`, `output_queue`, `vocabulary`: commands to the engine, and its tokens
  to each request.
- `runtime_limits`: limits that change while the engine runs.
- `adapters`: the adapters of the engine, as the gateway knows them.
- `supervisor`, `engine_process`: start, replace and stop the engine process.
- `engine_watch`, `liveness`, `stacks`: find an engine that hangs, and where its threads are.
- `request_context`: what an engine elsewhere is told of a request. `packed_ids`: a prompt's ids.
- `live_requests`: record which requests the gateway serves.
"""
