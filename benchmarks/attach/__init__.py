"""What an attached vLLM shows, what it survives, what watching it costs.

Each script starts vLLM through the recipe of `benchmarks.peers` (its environment, preloads, model)
with or without the plugin, and a sidecar beside it.
"""
