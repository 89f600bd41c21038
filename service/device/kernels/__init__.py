"""Triton kernels. `service.device.triton` and `quantization.triton_products` launch them."""
