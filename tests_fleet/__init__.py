"""A fleet on a real Ray Serve, on loopback, in an environment of its own.

`make test-fleet` runs it; the environment is made when it is first asked for (`environments`).
"""
