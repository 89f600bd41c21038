"""Simulated fleets with a known fault, as their gateway sees them: its facts, and nothing else.

recorded_world   a fleet's world that records what a gateway in production records
faults           what goes wrong: slow steps, late reports, clocks, caches
herds            gateways that all send to the same engine
traffic          what clients ask: usual traffic, and prefixes that become hot
twin             one run, with the time of its fault and its culprit
registry         every twin of a gateway by name
kv_world         two engines, one that computes prompts and one that decodes
kv_registry      every twin of theirs by name

A twin is a function of its name, its mechanism and its seed.
"""
