"""Mechanisms of drills, by what they act on."""
