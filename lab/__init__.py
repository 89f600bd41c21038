"""What exercises a server: load, simulation, replay, twins and drills. Not part of the service.

load          a load generator over HTTP (`phasescope bench`)
simulation    the production scheduler in virtual time, with faults and invariants
fleet         many engines and the production router in virtual time
replay        the production scheduler over a recorded run
vllm_replay   vLLM's own scheduler over a recorded run of an attached vLLM
twins         simulated runs of a whole server with a known fault
drills        real faults in a running server, injected from outside
"""
