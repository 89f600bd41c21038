"""What a model is: one file a family (`llama`, `mistral`, `qwen2`, `qwen3`), one row of `registry`.

    architecture        what a family states
    config_reader, gguf_reader    what families share of config.json and of GGUF metadata
    config_keys, gguf_keys        keys that need not be obeyed
    tensors             canonical names, shapes, and what files call them
    model, layers, ops  the decoder in torch, the same for all families
    weight_source       where a decoder gets its tensors

No family imports another one, and no back end asks which family a model is of.
"""
