"""How many bytes of text one token can stand for at most.

With that, a text that is too long for a context is known to be so by its length, and need not
be encoded to find out. It holds only where encoding loses nothing of the text: a tokenizer that
folds, strips or skips parts of it has no such bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from service.text.token_bytes import byte_level_table

# a canonical form is at most three times shorter: three jamo to a syllable, KELVIN SIGN to K
_CANONICAL = 4
_KEEP_ALL = {"ByteLevel", "Digits", "Metaspace", "Punctuation"}


@dataclass(frozen=True, slots=True)
class TokenBound:
    """No token stands for more than `longest_bytes` of UTF-8, and only the bytes in `unspelt`
    may have no token at all."""

    longest_bytes: int
    unspelt: bytes

    def least_tokens(self, text: str) -> int:
        """The text has at least so many tokens."""
        data = text.encode(errors="replace")
        if self.unspelt:
            data = data.translate(None, self.unspelt)
        return -(-len(data) // self.longest_bytes)


def token_bound(backend: Backend, token_bytes: Sequence[bytes]) -> TokenBound | None:
    """None where nothing bounds what a token stands for."""
    rules: dict[str, Any] = msgspec.json.decode(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    factor = _shrinks_by(rules.get("normalizer"))
    unspelt = _unspelt(rules, vocabulary)
    if factor is None or unspelt is None or rules.get("truncation"):
        return None
    if not _keeps_all(rules.get("pre_tokenizer")) or _takes_spaces_along(rules):
        return None
    if unspelt and factor > 1:
        return None  # what is spelt could become what is not
    longest = max((len(token_bytes[token_id]) for token_id in vocabulary.values()), default=0)
    return TokenBound(max(longest, 1) * factor, unspelt)


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


def _unspelt(rules: dict[str, Any], vocabulary: dict[str, int]) -> bytes | None:
    """Bytes that have no token, as byte-level models lack those that their training never saw;
    None where words are not spelt in bytes."""
    model: dict[str, Any] = rules.get("model") or {}
    if model.get("type") != "BPE":
        return None
    if model.get("byte_fallback"):
        return bytes(byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary)
    if "ByteLevel" not in _kinds(rules):
        return None
    return bytes(byte for name, byte in byte_level_table().items() if name not in vocabulary)


def _takes_spaces_along(rules: dict[str, Any]) -> bool:
    """Whether an added token stands for any number of spaces around it too."""
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
