"""The live terminal monitor: panels are pure functions of a frozen snapshot."""
