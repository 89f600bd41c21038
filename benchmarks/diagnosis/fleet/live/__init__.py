"""Drills of a fleet: real nodes, a real gateway and clients, and something that goes wrong outside.

proxy      a link that can be made slow
clock      a clock that can be made to jump, for a node and its engine
processes  nodes and a gateway
clients    what is asked of them
drills     what goes wrong, by name
watch      what the gateway says meanwhile
__main__   runs them and writes the result

    python -m benchmarks.diagnosis.fleet.live
"""
