"""A fleet gateway: `serve` without an engine of its own, whose engines are nodes.

- `startup`: binds the port, reads the membership. `serving`: its event loop from start to end.
"""
