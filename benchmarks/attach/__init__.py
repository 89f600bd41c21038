"""What attaching to an engine costs and shows."""
