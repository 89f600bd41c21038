"""An engine node: `serve` without the API that generates, whose sequences come over TCP.

- `serving`: the node's event loop from start to end; `startup`: what comes before heavy imports.
- `listener`, `gateway_peer`: connections of gateways.
- `remote_sequence`: one sequence of a gateway, and what the node records of it. `submits`: what the
  engine gets of it.
- `accounts`: what the node's ledger says of it, for its gateway.
- `prefixes`: which prefixes the engine holds, as each gateway is told.
- `prompts`: prompts that the engine computes for others, as requests of the node's telemetry.
"""
