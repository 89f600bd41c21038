"""A bound on the bytes of text that one token can encode.

With it, a prompt that is too long for the context is refused by its length, without encoding it.
There is no bound for tokenizers that drop or change parts of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from service.text.token_bytes import byte_level_table

# a canonical form is at most three times shorter (three jamo to a syllable, KELVIN SIGN to K)
_CANONICAL = 4
_KEEP_ALL = {"ByteLevel", "Digits", "Metaspace", "Punctuation"}


@dataclass(frozen=True, slots=True)
class TokenBound:
    """No token encodes more than `longest_bytes` bytes of UTF-8; only the bytes in `missing_bytes`
    can be without a token."""

    longest_bytes: int
    missing_bytes: bytes

    def least_tokens(self, text: str) -> int:
        """A lower bound for the number of the text's tokens."""
        data = text.encode(errors="replace")
        if self.missing_bytes:
            data = data.translate(None, self.missing_bytes)
        return -(-len(data) // self.longest_bytes)


def token_bound(backend: Backend, token_bytes: Sequence[bytes]) -> TokenBound | None:
    """The tokenizer's bound; None if it has none."""
    rules: dict[str, Any] = msgspec.json.decode(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    factor = _shrink_factor(rules.get("normalizer"))
    missing_bytes = _missing_bytes(rules, vocabulary)
    if factor is None or missing_bytes is None or rules.get("truncation"):
        return None
    if not _keeps_all_characters(rules.get("pre_tokenizer")) or _strips_spaces(rules):
        return None
    if missing_bytes and factor > 1:
        return None  # normalizing could make missing bytes of others
    longest = max((len(token_bytes[token_id]) for token_id in vocabulary.values()), default=0)
    return TokenBound(max(longest, 1) * factor, missing_bytes)


def _shrink_factor(normalizer: Any) -> int | None:
    """By what factor a normalizer can shorten a text; None if that is not known."""
    match normalizer:
        case None | {"type": "Prepend" | "ByteLevel"}:
            return 1
        case {"type": "NFC" | "NFD"}:
            return _CANONICAL
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return 1 if len(new.encode()) >= len(old.encode()) else None
        case {"type": "Sequence", "normalizers": [*parts]}:
            product = 1
            for factor in map(_shrink_factor, parts):
                if factor is None:
                    return None
                product *= factor
            return product
        case _:
            return None


def _keeps_all_characters(pre_tokenizer: Any) -> bool:
    """Whether the pre-tokenizer keeps all characters."""
    match pre_tokenizer:
        case None:
            return True
        case {"type": "Split", "behavior": str(behavior)}:
            return behavior != "Removed"
        case {"type": "Sequence", "pretokenizers": [*parts]}:
            return all(map(_keeps_all_characters, parts))
        case {"type": str(kind)}:
            return kind in _KEEP_ALL
        case _:
            return False


def _missing_bytes(rules: dict[str, Any], vocabulary: dict[str, int]) -> bytes | None:
    """Bytes without a token (some byte-level models lack bytes that were not in their training
    data); None if the tokenizer is not byte-level and has no byte fallback."""
    model: dict[str, Any] = rules.get("model") or {}
    if model.get("type") != "BPE":
        return None
    if model.get("byte_fallback"):
        return bytes(byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary)
    if "ByteLevel" not in _kinds(rules):
        return None
    return bytes(byte for name, byte in byte_level_table().items() if name not in vocabulary)


def _strips_spaces(rules: dict[str, Any]) -> bool:
    """Whether an added token matches any number of spaces around it too."""
    added = rules.get("added_tokens") or ()
    return any(token.get("lstrip") or token.get("rstrip") for token in added)


def _kinds(rules: dict[str, Any]) -> set[str]:
    """The kinds of all normalizers and pre-tokenizers."""
    waiting = [rules.get("normalizer"), rules.get("pre_tokenizer")]
    found: set[str] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            found.add(str(part.get("type")))
            waiting += part.get("normalizers") or []
            waiting += part.get("pretokenizers") or []
    return found
