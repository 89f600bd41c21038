"""Weights from safetensors, GGUF or a random generator; never from a pickle. Every key of a model's
files and every tensor is obeyed, known to be harmless, or refused by name."""
