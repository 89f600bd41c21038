"""The frames between a fleet gateway and an engine node, over TCP.

- `messages`: what the two say to each other; `checks`: what a node refuses of a submit.
- `handshake`: each proves that it has the shared key, which never travels, and frames are sealed
  with keys of the session.
- `peer`: one end of a connection: framing, caps, the deadline of a peer that has proved nothing, a
  bounded backlog.
- `key_file`: the shared key. `open_requests`: requests counted alike at both ends. `counts`,
  `families`: what was carried, refused and lost, as metrics.
- `load_fold`: how loaded an engine is, as gateways are told.

Frames are authenticated and not encrypted: prompts and outputs cross the network as they are. It
must not know HTTP, nor who computes.
"""
