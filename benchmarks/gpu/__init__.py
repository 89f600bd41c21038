"""What a GPU makes of our kernels and of the engine."""
