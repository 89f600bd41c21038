"""Checkpoints that were quantised by others: what `quantization_config` says, and what the tensors
that stand in for a weight mean.

    registry              which scheme a config.json names
    scheme                what a scheme is, and the folding of its tensors into weights
    gptq, awq, packed     4-bit integers (`packed` is compressed-tensors' pack-quantized)
    fp8                   e4m3 with scales, of DeepSeek, Qwen, vLLM and compressed-tensors
    compressed_config     compressed-tensors' own configuration
    nibbles               eight 4-bit numbers in an int32
"""
