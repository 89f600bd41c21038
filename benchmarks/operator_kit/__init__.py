"""The operator's kit shown with real programs: `python -m benchmarks.operator_kit.NAME`."""
