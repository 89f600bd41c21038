"""Prefill and decode apart: many simulated worlds, and two real engines in one process."""
