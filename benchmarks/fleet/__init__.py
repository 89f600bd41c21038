"""Figures of a fleet.

decision    how long the router's decision takes
routing     goodput of each policy on simulated fleets
"""
