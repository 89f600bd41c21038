"""Accuracy of the diagnosis: episodes with real faults, their score, and simulated servers."""
