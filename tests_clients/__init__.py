"""Contract tests with the clients and routers that people have, each in an environment of its own.

`make test-clients` runs them; environments are made when they are first asked for
(benchmarks/clients/environments.py).
"""
