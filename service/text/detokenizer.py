"""Token ids to text, one at a time, without ever showing half a character.

The bytes of a character may be spread over several tokens; they are held back until they
are complete. Stop strings may be spread over several pieces of text; what could still be
the beginning of one is held back too.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from service.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence. `push` pieces and `finish` together equal the whole text."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strip_first_space

    def push(self, token_id: int) -> str:
        """Text that is certain with this token, possibly none."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left; bytes that never became a character are U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Finds stop strings in a text that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would stop everything"
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is surely not part of a stop string, and whether one was found.

        After a find, nothing more is to be pushed: the text up to the stop is out.
        """
        self._held += text
        found = [self._held.find(stop) for stop in self._stops]
        hits = [at for at in found if at >= 0]
        if hits:
            before = self._held[: min(hits)]
            self._held = ""
            return before, True
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out, False

    def finish(self) -> str:
        """The held text: the end came before any stop string was complete."""
        out, self._held = self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
