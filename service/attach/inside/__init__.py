"""What runs in the processes of an attached engine.

It never raises into the engine, waits for nothing, and turns itself off, with a reason that the
sidecar gets, when it meets something that it does not know.
"""
