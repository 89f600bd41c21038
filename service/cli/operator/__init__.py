"""Commands of the operator's kit: what is sent to colleagues, taken to a notebook, or asked by an
agent.

- `report`, `report_remedies`: an incident as one HTML file, and what would have helped.
- `export`: requests, steps and ledgers as Parquet files.
- `mcp`: a read-only server of the Model Context Protocol over the debug routes.
- `limits`, `profile`: what an operator changes and records while a server runs.
- `attach`, `node`, `fleet`: servers beside `serve`, for engines of others and for fleets.
- `imported`: what can be told from evidence of other tools (`diagnose --from`).
- `replay_fleet`, `replay_vllm`: `replay` of a fleet, and of an attached vLLM.
- `ticker`: a line of progress every two seconds.
"""
