"""Blocks that go another way than the connection of two engines."""
