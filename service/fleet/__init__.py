"""Many engines behind many gateways.

- `wire`: the frames between a gateway and an engine node.
- `membership`: which engines there are.

Membership on a cluster, and bytes of the KV cache, are the work of others: Ray Serve, NIXL.
"""
