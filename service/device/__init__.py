"""The device: weights, cache, forward pass and sampling. The only package that imports torch,
OpenVINO and Triton; it knows plans of the engine, and nothing of requests, text or HTTP.

    loader              from a configuration to an executor
    backends, backend, torch_backend, attention_choice    which back end computes
    models, spec, rope  what a model is: a file a family, and the decoder in torch
    weights             tensors from safetensors, GGUF or a random generator
    native, openvino, cuda, torch_executor    what runs plans
    attention, lora, triton, kernels, quantization    what layers are computed with
    cache, memory, memory_profile             pages of keys and values, and how many
    sampling            from logits to tokens
    sharding, parallel  tensor parallelism: one rank's part, and the processes of all
    profiler, failures, inputs                torch's profiler, error kinds, a plan as tensors
"""
