"""The operator's kit against real programs: each script fails when what it shows does not hold."""
