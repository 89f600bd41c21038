"""Many engines behind many gateways.

- `routing`: which engine a request is sent to; pure.
- `wire`: the frames between a gateway and an engine node.
- `membership`: which engines there are.

Membership on a cluster, and bytes of the KV cache, are the work of others: Ray Serve, NIXL.
"""
