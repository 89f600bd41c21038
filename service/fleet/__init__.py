"""Many engines behind many gateways.

- `routing`: which engine a request is sent to; pure.
- `wire`: the frames between a gateway and an engine node.
- `membership`: which engines there are.
- `transfer`: KV blocks from the engine that computes a prompt to the one that decodes it.

Membership on a cluster, and bytes of the KV cache, are the work of others: Ray Serve, NIXL.
"""
