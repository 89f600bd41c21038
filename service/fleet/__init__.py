"""Many engines behind many gateways.

- `routing`: which engine a request is sent to; pure.
- `wire`: the frames between a gateway and an engine node.
- `membership`: which engines there are.
- `ray_serve`: gateways and engines that Ray Serve places and starts again.
- `transfer`: KV blocks from the engine that computes a prompt to the one that decodes it; over TCP
  or by NIXL.
"""
