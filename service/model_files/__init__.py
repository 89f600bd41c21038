"""Model files: finding, downloading and reading them. Must not import torch.

- `model_store`, `download`: resolve `--model` to files on this machine.
- `gguf_file`, `gguf_blocks`: read GGUF headers and dequantize tensors.
- `json_file`: reads JSON that anybody may have written.
- `strict_keys`: every key of a model's files is used, ignored for a reason, or refused.
"""
