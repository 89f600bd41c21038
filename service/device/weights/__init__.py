"""Weights from safetensors, GGUF or a random generator; never from a pickle."""
