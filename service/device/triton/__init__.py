"""Launches the kernels over tensors. Imported only where Triton is installed."""
