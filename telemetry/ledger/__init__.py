"""The exact ledger: where each nanosecond of a request went, and which request took it.

It charges what happened and judges nothing; it does not know how spans or metrics show it.

    tape, track         the engine's steps as shares; the steps of one sequence
    charging, lifecycle an interval charged to steps; a request's intervals in order
    stalls, harm        late tokens and their culprits; time taken from other requests
    remote              time of a request whose sequence was at an engine node
    builder             follows the facts and draws up each ended request's account
"""
