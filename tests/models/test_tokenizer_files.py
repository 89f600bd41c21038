"""A tokenizer's files are obeyed whole or refused by name, and every token has its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
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


# --- what a GGUF file does not state ---


def vocabulary(path: Path, kind: str, tokens: list[str], rules: str = "", **ids: int) -> Path:
    """A GGUF file with no more than a tokenizer: tokens in angles are control tokens, `ids` those
    that the file names."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token[0] in "<[" else 1 for token in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_merges([])
    if rules:
        writer.add_tokenizer_pre(rules)
    for name, token_id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "tokens", "ends"),
    [
        ("llama", ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"], (1, 4)),
        ("gpt2", ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], (1, 2, 3)),
        ("gpt2", ["<|start_of_role|>", "<|end_of_text|>"], (1,)),
        ("llama", ["<s>", "</s>", "<EOT>", "<|user|>", "<|end|>", "<|endoftext|>"], (1, 2, 4, 5)),
        ("gpt2", ["<|im_start|>", "<|endoftext|>", "<|im_end|>"], (1, 2)),
        ("gpt2", ["<a>", "<\uff5cend\u2581of\u2581sentence\uff5c>"], (1,)),
    ],
    ids=["Gemma", "Llama 3", "Granite", "Phi-3", "Qwen", "DeepSeek"],
)
def test_a_control_token_that_ends_a_turn_in_a_known_family_ends_the_text(
    kind: str, tokens: list[str], ends: tuple[int, ...], tmp_path: Path
) -> None:
    """Though the file names only eos, which many models never write."""
    tokenizer = load_gguf(vocabulary(tmp_path / "model.gguf", kind, [*tokens, "a"], eos=1))
    assert sorted(tokenizer.eos_token_ids) == list(ends)


@pytest.mark.parametrize(
    ("rules", "ids"),
    [("llama-bpe", [2, 0]), ("llama3", [2, 0]), ("llama-v3", [2, 0]), ("qwen2", [0]), ("", [0])],
)
def test_prompts_begin_with_bos_where_the_pre_tokenizer_is_llama_3_s(
    rules: str, ids: list[int], tmp_path: Path
) -> None:
    """Files of it are often silent on that; llama.cpp knows it too."""
    tokens = ["a", "b", "<|begin_of_text|>"]
    path = vocabulary(tmp_path / "model.gguf", "gpt2", tokens, rules, bos=2)
    assert load_gguf(path).encode("a") == ids


# --- the blank before a text ---

_PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
_STRIP = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def metaspace(scheme: str) -> dict[str, Any]:
    """A pre-tokenizer or a decoder."""
    return {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True,
    }  # fmt: skip


def pieces(folder: Path, more: tuple[str, ...] = (), **parts: Any) -> Path:
    """A tokenizer.json of pieces and bytes, with these parts."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for piece in ("\u2581", "h", "i", "hi", "\u2581hi", *more):
        vocab[piece] = len(vocab)
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("{}")
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
        "merges": ["h i", "\u2581 hi"],
    }  # fmt: skip
    described = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": model, **parts,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


LLAMA_2 = {"normalizer": _PREPEND, "decoder": _STRIP}
PREPENDS = {"pre_tokenizer": metaspace("always"), "decoder": metaspace("always")}
NEVER_PREPENDS = {"pre_tokenizer": metaspace("never"), "decoder": metaspace("never")}


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        (LLAMA_2, ["hi hi", "hi", "hi\nhi", "", " hi", "  hi\nhi"]),
        (PREPENDS, ["hi hi", "hi", "hi\nhi", ""]),  # to a text with a blank it adds none
        (NEVER_PREPENDS, ["hi hi", "hi", "hi\nhi", "", " hi", "  hi\nhi"]),
    ],
    ids=["Llama 2", "prepends", "never prepends"],
)
def test_a_text_and_its_tokens_round_trip(parts: Any, texts: list[str], tmp_path: Path) -> None:
    """The blank that is put before a text is taken away again, and no other one."""
    tokenizer = load(pieces(tmp_path / "model", **parts))
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_a_token_that_is_called_metaspace_changes_no_text(tmp_path: Path) -> None:
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    shown = {"type": "Sequence", "decoders": _STRIP["decoders"][:3]}
    parts = {"normalizer": replaced, "decoder": shown}
    tokenizer = load(pieces(tmp_path / "model", more=("Metaspace", "ByteLevel"), **parts))
    assert tokenizer.decode(tokenizer.encode(" hi")) == " hi"
