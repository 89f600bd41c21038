"""Kernels in Triton, and the functions that launch them. Imported only where Triton is."""
