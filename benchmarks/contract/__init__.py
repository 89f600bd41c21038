"""Checks of the runtime contract on a real server: `python -m benchmarks.contract`."""
