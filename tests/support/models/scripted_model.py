"""A real model folder whose text is known: each token has one that follows it.

The layers add nothing, the embeddings are one-hot, and the output matrix is the table of what
follows what. So a server computes, samples and detokenizes as it does for any model, and a test
knows what must come, markers of reasoning and calls of tools included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from service.text.token_bytes import byte_level_table

_HEADS, _HEAD_DIM, _FFN = 2, 16, 16
_SURE = 100.0  # of a logit: no temperature draws another token


def scripted_folder(
    folder: Path,
    follows: Mapping[str, str],
    template: str,
    *,
    end: str = "<end>",
    special: Sequence[str] = (),
    spaced: bool = False,
) -> Path:
    """A folder whose model says `follows[word]` after `word`; each word is one token.

    Bytes are tokens too. What follows no other word ends the text. `special` words are control
    tokens, which are not part of a text. With `spaced` the tokenizer is SentencePiece's kind: a
    space that a text begins with is none of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = list(dict.fromkeys([end, *follows.keys(), *follows.values()]))
    ids = _write_tokenizer(folder, words, {end, *special}, template, end, spaced)
    size = max(ids.values()) + 1
    hidden = -(-size // 32) * 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": _FFN,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HEAD_DIM,
        "num_hidden_layers": 1,
        "vocab_size": size,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(size, hidden, ids, follows, end), folder / "model.safetensors")
    return folder


def _write_tokenizer(
    folder: Path, words: Sequence[str], special: set[str], template: str, end: str, spaced: bool
) -> dict[str, int]:
    """tokenizer.json and its settings; the ids of the words."""
    backend = Backend(models.BPE(vocab=dict(byte_level_table()), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if spaced:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
    for word in words:
        token = AddedToken(word, special=word in special, normalized=False)
        (backend.add_special_tokens if word in special else backend.add_tokens)([token])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": template, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return {word: backend.token_to_id(word) for word in words}


def _tensors(
    size: int, hidden: int, ids: Mapping[str, int], follows: Mapping[str, str], end: str
) -> dict[str, torch.Tensor]:
    after = torch.full((size,), ids[end])
    for word, following in follows.items():
        after[ids[word]] = ids[following]
    head = torch.zeros(size, hidden)
    head[after, torch.arange(size)] = _SURE
    prefix = "model.layers.0"
    inner = _HEADS * _HEAD_DIM
    shapes = {
        **{f"{prefix}.self_attn.{part}_proj.weight": (inner, hidden) for part in "qkv"},
        f"{prefix}.self_attn.o_proj.weight": (hidden, inner),
        f"{prefix}.mlp.gate_proj.weight": (_FFN, hidden),
        f"{prefix}.mlp.up_proj.weight": (_FFN, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, _FFN),
    }
    norms = ("model.norm.weight", f"{prefix}.input_layernorm.weight",
             f"{prefix}.post_attention_layernorm.weight")  # fmt: skip
    return {
        "model.embed_tokens.weight": torch.eye(size, hidden),
        "lm_head.weight": head,
        **{name: torch.zeros(shape) for name, shape in shapes.items()},
        **{name: torch.ones(hidden) for name in norms},
    }
