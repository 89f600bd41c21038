"""How many bytes of text one token can stand for at most.

With that, a text that is too long for a context is known to be so by its length, and need not
be encoded to find out. It holds only where encoding loses nothing of the text: a tokenizer that
folds, strips or skips parts of it has no such bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

# a canonical form is at most three times shorter: three jamo to a syllable, KELVIN SIGN to K
_CANONICAL = 4
_KEEP_ALL = {"ByteLevel", "Digits", "Metaspace", "Punctuation"}


def longest_token_bytes(backend: Backend, token_bytes: Sequence[bytes]) -> int | None:
    """Bytes of UTF-8 that one token stands for at most, or None where nothing bounds them."""
    rules: dict[str, Any] = msgspec.json.decode(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    factor = _shrinks_by(rules.get("normalizer"))
    if factor is None or rules.get("truncation") or not _keeps_all(rules.get("pre_tokenizer")):
        return None
    if not _spells_all(rules, vocabulary):
        return None
    longest = max((len(token_bytes[token_id]) for token_id in vocabulary.values()), default=0)
    return max(longest, 1) * factor


def _shrinks_by(normalizer: Any) -> int | None:
    """How many times shorter a text can become; None if there is no telling."""
    match normalizer:
        case None | {"type": "Prepend" | "ByteLevel"}:
            return 1
        case {"type": "NFC" | "NFD"}:
            return _CANONICAL
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return 1 if len(new.encode()) >= len(old.encode()) else None
        case {"type": "Sequence", "normalizers": [*parts]}:
            product = 1
            for factor in map(_shrinks_by, parts):
                if factor is None:
                    return None
                product *= factor
            return product
        case _:
            return None


def _keeps_all(pre_tokenizer: Any) -> bool:
    """Whether cutting the text into words leaves every character in one of them."""
    match pre_tokenizer:
        case None:
            return True
        case {"type": "Split", "behavior": str(behavior)}:
            return behavior != "Removed"
        case {"type": "Sequence", "pretokenizers": [*parts]}:
            return all(map(_keeps_all, parts))
        case {"type": str(kind)}:
            return kind in _KEEP_ALL
        case _:
            return False


def _spells_all(rules: dict[str, Any], vocabulary: dict[str, int]) -> bool:
    """Whether every byte has a token, and no added token takes the spaces around it along."""
    model: dict[str, Any] = rules.get("model") or {}
    if any(token.get("lstrip") or token.get("rstrip") for token in rules.get("added_tokens") or ()):
        return False
    if model.get("type") != "BPE":
        return False
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    is_byte_level = "ByteLevel" in _kinds(rules)
    return is_byte_level and vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())


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
