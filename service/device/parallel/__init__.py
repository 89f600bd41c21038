"""Tensor parallelism: the processes of all ranks, and the messages between them."""
