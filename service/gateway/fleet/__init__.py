"""The gateway's client of engines on other machines. It must not know HTTP or the OpenAI API.

- `client`: what `service.gateway.engine_client.client` is for one engine of its own, for many.
- `link`: the connection to one node, kept up. `routing`: which engine a request goes to.
- `prefill`: which engine computes the prompt of a request.
- `sent_sequence`, `sent_sequences`: the sequences that a gateway has at engines elsewhere.
- `engines_view`: the engines for operators. `starts`: what all do.
- `digest`: whether two processes make texts of the same tokens. `families`, `wire_time`: metrics.
- `replica_latency`: latencies by engine. `known_names`: what makes room where names are bounded.
"""
