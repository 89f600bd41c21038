"""The sidecar of an engine that others wrote; part of the composition root.

- `attaching`: the sidecar from start to end.
- `parent`: the sidecar and the command that is started beside it, as two children.
- `families`: what it counts of its connections, as metrics.
"""
