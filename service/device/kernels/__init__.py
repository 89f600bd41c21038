"""Triton kernels. What launches them is beside what needs them."""
