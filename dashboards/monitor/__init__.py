"""The live terminal monitor: pure panels over a frozen snapshot."""
