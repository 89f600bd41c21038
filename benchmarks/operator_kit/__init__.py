"""The operator's kit against real programs: each shows one part of it, and fails when it does not hold."""
