"""Builds a tokenizer from the metadata of a GGUF file.

GGUF has only the name of the pre-tokenizer (`tokenizer.ggml.pre`); the rules below are those in
the models' own tokenizer.json.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from service.config.settings import ConfigError
from service.model_files.gguf_file import GgufFile
from service.model_files.strict_keys import StrictKeys
from service.text.known_keys import GGUF_TOKENIZER, GGUF_TOKENIZER_PREFIXES
from service.text.rows import refuse_ids_beyond, refuse_tokens_beyond
from service.text.token_bytes import byte_level_bytes, byte_level_table, metaspace_bytes
from service.text.tokenizer import Tokenizer, broken

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

_LLAMA3_RULES = ("llama-bpe", "llama3", "llama-v3")
# what ends a turn or a text in some family, as llama.cpp has it; files often name one of several
_ENDS = frozenset(
    {
        "</s>", "<eos>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "\u2581<EOT>",
        "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>", "[EOS]", "[EOT]",
    }
)  # fmt: skip


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises ConfigError when metadata is missing, not supported or
    not known."""
    file = GgufFile(path)
    meta = StrictKeys(
        path, {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
    )
    kind = meta.take("tokenizer.ggml.model")
    tokens, types, rows = _tokens(file, meta)
    prefixes_space = meta.flag("tokenizer.ggml.add_space_prefix", True)
    merges = meta.list_of("tokenizer.ggml.merges", str)
    scores = meta.list_of("tokenizer.ggml.scores", float, int)
    rules = meta.text("tokenizer.ggml.pre") or "default"
    match kind:
        case "gpt2":
            backend = _byte_level(path, tokens, merges, rules)
            table = byte_level_table()
            encoded = [byte_level_bytes(token, table) for token in tokens]
        case "llama":
            backend = _sentencepiece(path, tokens, scores[: len(tokens)], prefixes_space)
            encoded = [metaspace_bytes(token) for token in tokens]
        case _:
            raise broken(path, f"kind {kind!r} is not supported (gpt2 and llama are)")
    special = frozenset(i for i, t in enumerate(types) if t in (_CONTROL, _UNKNOWN))
    for token_id, token_type in enumerate(types):
        if token_type in (_CONTROL, _USER_DEFINED):
            encoded[token_id] = tokens[token_id].encode()
    _add_special(backend, tokens, types)
    ends = _end_tokens(meta, tokens, special)
    bos = _token_of(meta, "tokenizer.ggml.bos_token_id")
    refuse_ids_beyond(path, "eos_token_id", ends, rows)
    refuse_ids_beyond(path, "bos_token_id", () if bos is None else (bos,), rows)
    tokenizer = Tokenizer(
        backend,
        token_bytes=encoded,
        special_ids=special,
        bos_token_id=bos,
        eos_token_ids=ends,
        add_bos=meta.flag(
            "tokenizer.ggml.add_bos_token", kind == "llama" or rules in _LLAMA3_RULES
        ),
        strip_first_space=kind == "llama" and prefixes_space,
        chat_template=meta.text("tokenizer.chat_template"),
    )
    meta.finish(GGUF_TOKENIZER, GGUF_TOKENIZER_PREFIXES)
    return tokenizer


def _tokens(file: GgufFile, meta: StrictKeys) -> tuple[list[str], list[int], int]:
    """Tokens, their types, and the number of embedding rows; tokens beyond the rows are dropped if
    they are unused. Raises ConfigError."""
    tokens: list[str] = meta.list_of("tokenizer.ggml.tokens", str)
    if not tokens:
        raise broken(file.path, "the file carries no token list")
    types: list[int] = meta.list_of("tokenizer.ggml.token_type", int) or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise broken(file.path, f"{len(tokens)} tokens have {len(types)} types")
    embedding = file.tensors.get("token_embd.weight")
    rows = len(tokens) if embedding is None else embedding.shape[0]
    known = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}
    refuse_tokens_beyond(file.path, known, rows)
    return tokens[:rows], types[:rows], rows


def _byte_level(path: Path, tokens: list[str], merges: list[str], rules: str) -> Backend:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    halves = (merge.partition(" ") for merge in merges)
    pairs = [(left, right) for left, _, right in halves]
    ignore_merges = rules in _LLAMA3_RULES
    try:
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=ignore_merges)
    except Exception as error:
        raise broken(path, error) from error
    backend = Backend(model)
    backend.pre_tokenizer = _pre_tokenizer(path, rules)
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
        case "llama-bpe" | "llama3" | "llama-v3" | "dbrx":
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


def _sentencepiece(
    path: Path, tokens: list[str], scores: list[float], prefixes_space: bool
) -> Backend:
    """SentencePiece BPE: pieces are merged in the order of their scores. Raises ConfigError."""
    if len(scores) != len(tokens):
        raise broken(path, "the file carries no scores for its SentencePiece tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = _merges_from_scores(vocab, scores)
    try:
        model = models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True)
    except Exception as error:
        raise broken(path, error) from error
    backend = Backend(model)
    scheme = "first" if prefixes_space else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return backend


def _merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best piece first, as SentencePiece merges them."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, token_id in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                pair = (left, right)
                found.append((-scores[token_id], vocab[left], vocab[right], pair))
    return [pair for *_, pair in sorted(found)]


def _add_special(backend: Backend, tokens: list[str], types: list[int]) -> None:
    for token_type, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(tokens[i], special=special, normalized=False)
            for i, found in enumerate(types)
            if found == token_type
        ]
        backend.add_special_tokens(added) if special else backend.add_tokens(added)


def _end_tokens(meta: StrictKeys, tokens: list[str], special: frozenset[int]) -> tuple[int, ...]:
    """The end tokens that the file names, and control tokens that are known to end a turn."""
    stated = [_token_of(meta, f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    found = [token_id for token_id in stated if token_id is not None]
    found += [i for i in sorted(special) if tokens[i] in _ENDS]
    return tuple(dict.fromkeys(found))


def _token_of(meta: StrictKeys, key: str) -> int | None:
    """The id at a key, None where the file is silent. Raises ConfigError."""
    return None if meta.peek(key) is None else meta.integer(key)
