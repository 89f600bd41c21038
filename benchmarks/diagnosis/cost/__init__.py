"""What the diagnosis costs in service."""
