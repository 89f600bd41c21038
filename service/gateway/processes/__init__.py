"""Several gateway processes behind one address (`--gateways`).

The main process supervises the engine and the gateway processes, has all telemetry, and answers
for operators. Gateway processes serve clients: they read requests, submit sequences to the engine,
and write its tokens. Their facts go to the main process.

    client -> gateway process -> engine         (submit, cancel; tokens back)
              gateway process -> main process   (facts, counts; claims of request ids)
                                 engine -> main process (facts)

- `messages`: what main process and gateway processes say to each other.
- in the main process: `sockets`, `pool`, `peer`, `silence`, `intake`, `tallies`.
- in a gateway process: `main_link`, `facts_out`, `engine_link`, `forwarding`, `unwatched`.
- `shared_count`: a number that both see.
"""
