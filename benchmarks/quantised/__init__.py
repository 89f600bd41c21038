"""Quantised checkpoints made of the default model, what they cost in quality and bring in speed.

rounding      round to nearest into each format: 4-bit groups, fp8, K-quants of GGUF
folders       checkpoints in safetensors: GPTQ, AWQ, compressed-tensors, FP8
gguf_files    GGUF files: Q8_0, Q4_K_M, and random blocks of a larger shape
random_weights  small checkpoints of random weights, for comparisons of texts
measures      perplexity, divergence, agreement; tokens per second
"""
