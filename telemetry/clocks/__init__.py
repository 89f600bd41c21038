"""Time across machines: how far a node's clock is ahead of the gateway's, and where in the
gateway's time a node's stamps lie. Pure; nothing here reads a clock.

`offset`: bounds on one node's clock from stamps of frames. `boundaries`: a node's account placed in
the gateway's time, each boundary with its epsilon. `fleet_clocks`: the fold over facts.
"""
