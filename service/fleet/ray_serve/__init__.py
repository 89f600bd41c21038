"""A fleet on Ray Serve: who runs where, and what starts again, is Ray's; no request or token is.

- `plan`: the TOML file that says what the fleet is.
- `tether`, `child`: a process that ends with the one that started it.
- `replicas`: what Ray runs: an engine's, a gateway's, and the one that keeps the roll of engines.
- `app`: the application of them.

Only `app` imports Ray, and no process that serves: nodes and gateways are the same programs as in a
fleet of a static file.
"""
