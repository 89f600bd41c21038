"""Decoders: layers, and the forward pass."""
