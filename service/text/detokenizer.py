"""Incremental detokenization, and stop strings.

The bytes of a character can be spread over several tokens, and a stop string over several pieces
of text. Incomplete characters, and text that may be the beginning of a stop string, are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from service.text.tokenizer import Tokenizer


class Detokenizer:
    """Detokenizes one sequence; what `push` and `finish` return makes up the whole text."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, shown_ids: Collection[int] = ()
    ) -> None:
        """`shown_ids` are special tokens that are a part of the text even so."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown_ids = shown_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strip_first_space

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; may be empty."""
        is_hidden = self._skip_special and self._tokenizer.is_special(token_id)
        if is_hidden and token_id not in self._shown_ids:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest; bytes of an incomplete character become U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Finds stop strings in text that arrives in pieces.

    With `keep`, the text that stopped it counts as text before it.
    """

    def __init__(self, stops: Sequence[str], keep: bool = False) -> None:
        assert all(stops), "an empty stop string would stop everything"
        self._stops = tuple(stops)
        self._keep = keep
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certainly not part of a stop string, and whether one was found.

        When one was found, the text before it has been returned; call neither method again.
        """
        self._held += text
        found = [(self._held.find(stop), len(stop)) for stop in self._stops]
        hits = [hit for hit in found if hit[0] >= 0]
        if hits:
            begin, length = min(hits)
            before = self._held[: begin + (length if self._keep else 0)]
            self._held = ""
            return before, True
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out, False

    def finish(self) -> str:
        """The text that was held back; the text has ended without a stop string."""
        out, self._held = self._held, ""
        return out


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
