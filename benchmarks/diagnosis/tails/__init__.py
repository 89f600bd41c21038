"""Faults of the tail: their intensities, and how the diagnosis did on them."""
