"""Figures of load generators beside ours."""
