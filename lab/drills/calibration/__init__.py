"""Finds the intensity at which a fault hits its clients as hard as is wanted, on this machine."""
