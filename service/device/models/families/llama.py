"""Llama 2 and 3, and SmolLM2, whose files say that it is a Llama.

The plain decoder: no biases, no norms of queries and keys, rope with linear or Llama 3's scaling,
tied embeddings where the file says so. In a GGUF file its rotary pairs lie side by side.
"""

from __future__ import annotations

from service.device.models.architecture import Architecture

LLAMA = Architecture(
    family="llama",
    hf_name="LlamaForCausalLM",
    gguf_name="llama",
    gguf_interleaves_rope=True,
)
