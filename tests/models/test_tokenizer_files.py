"""A tokenizer's files are obeyed whole or refused by name, and every token has its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from service.config.settings import ConfigError, ModelKind, ModelRef
from service.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.models.model_folders import TINY, tiny_gguf, write_config, write_tokenizer

# tokenizer_config.json of published checkpoints, their tokens replaced by those at hand
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2": {
        "add_prefix_space": False, "additional_special_tokens": ["<s>", "</s>"], "bos_token": "<s>",
        "added_tokens_decoder": {"2": {"content": "<s>", "special": True}},
        "clean_up_tokenization_spaces": False, "eos_token": "</s>", "model_max_length": 8192,
        "pad_token": "</s>", "tokenizer_class": "GPT2Tokenizer", "unk_token": "<s>",
        "vocab_size": 49152, "chat_template": "{{ messages }}",
    },
    "Llama-3.2": {
        "added_tokens_decoder": {"2": {"content": "<s>", "special": True}}, "bos_token": "<s>",
        "clean_up_tokenization_spaces": True, "eos_token": "</s>",
        "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    },
    "Mistral": {
        "add_bos_token": True, "add_eos_token": False, "additional_special_tokens": [],
        "bos_token": "<s>", "eos_token": "</s>", "legacy": True,
        "model_max_length": 1000000000000000019884624838656, "pad_token": None,
        "sp_model_kwargs": {}, "spaces_between_special_tokens": False,
        "tokenizer_class": "LlamaTokenizer", "unk_token": "<s>",
        "use_default_system_prompt": False,
    },
    "Qwen3": {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "</s>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "</s>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    },
}  # fmt: skip


def load(folder: Path) -> Tokenizer:
    return load_tokenizer(ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name="folder"))


def load_gguf(path: Path) -> Tokenizer:
    return load_tokenizer(ModelRef(kind=ModelKind.GGUF, path=str(path), name="file"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_published_tokenizers_are_taken(name: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, ["<s>", "</s>"], PUBLISHED[name])
    assert load(folder).eos_token_ids == (3,)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"x_unheard_of": 1}, "'x_unheard_of'"),
        ({"split_special_tokens": True}, "split_special_tokens"),
        ({"auto_map": {"AutoTokenizer": ["own.T", None]}}, "auto_map"),
        ({"added_tokens_decoder": {"7": {"content": "<x>"}}}, "added_tokens_decoder.*<x>"),
        ({"additional_special_tokens": ["<x>"]}, "additional_special_tokens.*<x>"),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True},
         "add_eos_token"),
    ],
)  # fmt: skip
def test_an_unsupported_tokenizer_setting_is_refused_by_name(
    settings: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        load(write_tokenizer(tmp_path, ["<s>", "</s>"], settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("adds", "first"), [(True, [2, 0]), (False, [0])])
def test_a_tokenizer_class_with_its_own_bos_flag_is_followed(
    adds: bool, first: list[int], tmp_path: Path
) -> None:
    """Whatever tokenizer.json says, as transformers does it."""
    settings = {"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": adds}
    assert load(write_tokenizer(tmp_path, ["<s>", "</s>"], settings)).encode("a") == first


def test_a_tokenizer_that_cuts_or_ends_prompts_does_neither(tmp_path: Path) -> None:
    """A cut prompt would be another one; an end token before the answer is refused."""
    folder = write_tokenizer(tmp_path, ["<s>", "</s>"])
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    assert load(folder).encode("aaab") == [0, 0, 0, 1]

    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 3)]
    )
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match="tokens around a prompt"):
        load(folder)


def test_a_text_that_is_embedded_ends_as_the_model_wants_it(tmp_path: Path) -> None:
    """Only where the files are of a model for embeddings; a prompt for an answer has no end."""
    folder = write_tokenizer(tmp_path, ["<s>", "</s>"], {"eos_token": "</s>"})
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 3)]
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "modules.json").write_text("[]")
    tokenizer = load(folder)

    assert tokenizer.encode_to_embed("ab") == [0, 1, 3]
    assert tokenizer.encode("ab") == [0, 1]


def test_an_unsupported_gguf_tokenizer_key_is_refused_by_name(tmp_path: Path) -> None:
    for key, value in (
        ("tokenizer.ggml.unheard_of", 1),
        ("tokenizer.ggml.add_eos_token", True),
        ("tokenizer.ggml.remove_extra_whitespaces", True),
    ):
        with pytest.raises(ConfigError, match=key):
            load_gguf(tiny_gguf(tmp_path / "tiny.gguf", {key: value}))


# --- tokens and rows ---


def test_tokens_without_a_row_in_the_embedding_are_refused_by_name(tmp_path: Path) -> None:
    """One of them in a prompt would fail a step for everybody in it."""
    folder = write_tokenizer(tmp_path, ["<s>", "</s>", "<pad>", "<more>"])
    write_config(folder, {"vocab_size": 4})
    with pytest.raises(ConfigError, match=r"2 tokens .*'<pad>' \(4\), '<more>' \(5\)"):
        load(folder)

    write_config(folder, {"vocab_size": 6})
    assert load(folder).vocab_size == 6


def test_an_end_token_without_a_row_is_refused(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, ["<s>", "</s>"])
    write_config(folder, {"vocab_size": 4})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    with pytest.raises(ConfigError, match="eos_token_id 4"):
        load(folder)

    with pytest.raises(ConfigError, match="eos_token_id 600"):
        load_gguf(tiny_gguf(tmp_path / "tiny.gguf", eos=600))


def test_unused_padding_beyond_the_embedding_is_left_out(tmp_path: Path) -> None:
    """Nothing becomes such a token; any other one is refused."""
    padded = tiny_gguf(tmp_path / "padded.gguf", tokens=TINY.vocab + 8, unused=8)
    assert load_gguf(padded).vocab_size == TINY.vocab

    larger = tiny_gguf(tmp_path / "larger.gguf", tokens=TINY.vocab + 8, unused=7)
    with pytest.raises(ConfigError, match=r"1 tokens .*'t512' \(512\)"):
        load_gguf(larger)
