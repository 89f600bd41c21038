"""Figures of a fleet.

decision    how long the router's decision takes
faults      simulated fleets with faults, as many as there is time for
routing     goodput of each policy on simulated fleets
"""
