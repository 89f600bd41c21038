"""Faults of twins, by what they act on: clients, load, limits, sampling, machine, failures."""
