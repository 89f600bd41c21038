"""The KV cache as the scheduler sees it: blocks, prefixes, what is offloaded to host memory."""
