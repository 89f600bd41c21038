"""LoRA adapters on the default model: whether texts are PEFT's (`parity`), and what they cost
(`throughput`)."""
