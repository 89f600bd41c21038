"""A tokenizer from the metadata of a GGUF file.

GGUF names the pre-tokenizer (`tokenizer.ggml.pre`) instead of describing it; the rules
below are those that the models' authors publish in their tokenizer.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from service.config import ConfigError
from service.gguf_file import GgufFile
from service.text.token_bytes import byte_level_bytes, byte_level_table, metaspace_bytes
from service.text.tokenizer import Tokenizer, broken

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "</s>")


def gguf_tokenizer(path: Path) -> Tokenizer:
    """Raises ConfigError when the metadata lacks something or is of an unknown kind."""
    file = GgufFile(path)
    meta = file.metadata
    kind = meta.get("tokenizer.ggml.model")
    tokens: list[str] | None = meta.get("tokenizer.ggml.tokens")
    if not tokens:
        raise broken(path, "the file carries no token list")
    match kind:
        case "gpt2":
            backend = _byte_level(path, meta, tokens)
            table = byte_level_table()
            encoded = [byte_level_bytes(token, table) for token in tokens]
        case "llama":
            backend = _sentencepiece(path, meta, tokens)
            encoded = [metaspace_bytes(token) for token in tokens]
        case _:
            raise broken(path, f"kind {kind!r} is not supported (gpt2 and llama are)")
    types: list[int] = meta.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    special = frozenset(i for i, t in enumerate(types) if t in (_CONTROL, _UNKNOWN))
    for token_id, token_type in enumerate(types):
        if token_type in (_CONTROL, _USER_DEFINED):
            encoded[token_id] = tokens[token_id].encode()
    _add_special(backend, tokens, types)
    return Tokenizer(
        backend,
        token_bytes=encoded,
        special_ids=special,
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_end_tokens(meta, tokens, special),
        add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        strip_first_space=kind == "llama" and _prefixes_space(meta),
        chat_template=meta.get("tokenizer.chat_template"),
    )


def _byte_level(path: Path, meta: dict[str, Any], tokens: list[str]) -> Backend:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in meta.get("tokenizer.ggml.merges") or []]
    ignore_merges = meta.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3", "llama-v3")
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges)
    except Exception as error:
        raise broken(path, error) from error
    backend = Backend(model)
    backend.pre_tokenizer = _pre_tokenizer(path, meta.get("tokenizer.ggml.pre", "default"))
    return backend


def _pre_tokenizer(path: Path, name: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    after_split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def split(pattern: str) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Split(Regex(pattern), behavior="isolated")

    match name:
        case "smollm" | "starcoder" | "refact" | "command-r":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, plain])
        case "llama-bpe" | "llama3" | "llama-v3":
            return pre_tokenizers.Sequence([split(_LLAMA3_SPLIT), after_split])
        case "qwen2" | "deepseek-r1-qwen":
            return pre_tokenizers.Sequence([split(_QWEN2_SPLIT), after_split])
        case "default" | "gpt-2" | "gpt2":
            return plain
        case _:
            raise ConfigError(
                f"{path}: pre-tokenizer {name!r} is not known; "
                "use the model's Hugging Face folder instead"
            )


def _sentencepiece(path: Path, meta: dict[str, Any], tokens: list[str]) -> Backend:
    """SentencePiece BPE: pieces merge in the order of their scores."""
    scores: list[float] = meta.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise broken(path, "the file carries no scores for its SentencePiece tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = _merges_from_scores(vocab, scores)
    try:
        model = models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True)
    except Exception as error:
        raise broken(path, error) from error
    backend = Backend(model)
    scheme = "first" if _prefixes_space(meta) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return backend


def _merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces, best piece first (as SentencePiece merges)."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, token_id in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                pair = (left, right)
                found.append((-scores[token_id], vocab[left], vocab[right], pair))
    return [pair for *_, pair in sorted(found)]


def _prefixes_space(meta: dict[str, Any]) -> bool:
    return bool(meta.get("tokenizer.ggml.add_space_prefix", True))


def _add_special(backend: Backend, tokens: list[str], types: list[int]) -> None:
    for token_type, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(tokens[i], special=special, normalized=False)
            for i, found in enumerate(types)
            if found == token_type
        ]
        backend.add_special_tokens(added) if special else backend.add_tokens(added)


def _end_tokens(
    meta: dict[str, Any], tokens: list[str], special: frozenset[int]
) -> tuple[int, ...]:
    """The stated EOS and EOT, and control tokens that are known to end a turn."""
    found = [
        int(meta[key])
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if meta.get(key) is not None
    ]
    found += [i for i in sorted(special) if tokens[i] in _END_OF_TURN]
    return tuple(dict.fromkeys(found))
