"""What exercises a server: load, simulation, replay, twins and drills. Not part of the service.

load          a load generator over HTTP (`phasescope bench`)
simulation    the production scheduler in virtual time, with faults and invariants
replay        the production scheduler over a recorded run
twins         simulated runs of a whole server with a known fault
drills        real faults in a running server, injected from outside
"""
