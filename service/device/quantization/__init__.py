"""Weights as they are stored, and the products with them: floats, int8, fp8. `rows` has the one
rounding that weights, activations and KV cache share."""
