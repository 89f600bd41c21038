"""Tensor parallelism: each layer's matrices are shared out to ranks, one process each."""
