"""The default model's tokenizer as a folder that transformers reads: tools make prompts with it."""

from __future__ import annotations

import json
from pathlib import Path

from service.text.gguf_tokenizer import gguf_tokenizer

_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def write_tokenizer(gguf: Path, folder: Path) -> Path:
    """The folder, with tokenizer.json and what transformers needs beside it."""
    tokenizer = gguf_tokenizer(gguf)
    end = tokenizer.token_text(tokenizer.eos_token_ids[0])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "chat_template": tokenizer.chat_template,
    }
    folder.mkdir(parents=True, exist_ok=True)
    described = json.loads(tokenizer.backend_json())
    described["decoder"] = _DECODER  # ours decodes bytes by itself, so the file names none
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
