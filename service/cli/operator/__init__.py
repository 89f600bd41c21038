"""Commands of the operator's kit: what is sent to colleagues, taken to a notebook, or asked by an
agent.

- `report`, `report_help`: an incident as one HTML file, and what would have helped.
- `export`: requests, steps and ledgers as Parquet files.
- `mcp`: a read-only server of the Model Context Protocol over the debug routes.
- `limits`, `profile`: what an operator changes and records while a server runs.
- `attach`, `node`: servers beside `serve`, for engines of others and for fleets.
- `ticker`: a line of progress every two seconds.
"""
