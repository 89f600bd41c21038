"""The record of all facts: in memory, on disk, as dumps, and read back."""
