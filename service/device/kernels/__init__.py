"""Triton kernels, compiled. `service.device.triton` and `quantization.triton_products` launch them."""
