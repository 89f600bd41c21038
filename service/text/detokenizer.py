"""Incremental detokenization, and stop strings.

The bytes of a character can be spread over several tokens, and a stop string over several pieces
of text. Incomplete characters, and text that may be the beginning of a stop string, are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from functools import lru_cache

from service.text.tokenizer import Tokenizer


class Detokenizer:
    """Detokenizes one sequence; what `push` and `finish` return makes up the whole text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        shown_ids: Collection[int] = (),
        continues: bool = False,
    ) -> None:
        """`shown_ids` are special tokens that are a part of the text even so. With `continues` the
        tokens go on with a text: a space that they begin with is one."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown_ids = shown_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strip_first_space and not continues

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
        self._stops = tuple(map(_Stop, stops))
        self._keep = keep
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certainly not part of a stop string, and whether one was found.

        When one was found, the text before it has been returned; call neither method again.
        """
        known = len(self._held)
        self._held += text
        hits: list[tuple[int, int]] = []
        for stop in self._stops:
            end = stop.end_in(text)
            if end is not None:
                hits.append((known + end - stop.length, stop.length))
        if hits:
            begin, length = min(hits)
            before = self._held[: begin + (length if self._keep else 0)]
            self._held = ""
            return before, True
        keep = max((stop.matched for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out, False

    def finish(self) -> str:
        """The text that was held back; the text has ended without a stop string."""
        out, self._held = self._held, ""
        return out


class _Stop:
    """One stop string: the text read so far ends with its first `matched` characters, and with no
    more of them.

    Each character is compared twice at most on average (Knuth, Morris and Pratt): a client chooses
    the stop strings, and all clients wait for what a token costs.
    """

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._first = stop[0]
        self._shorter = _shorter_matches(stop)
        self.length = len(stop)
        self.matched = 0

    def end_in(self, text: str) -> int | None:
        """Read on; where in `text` the stop string ends, None if it does not."""
        matched = self.matched
        if not matched and self._first not in text:
            return None
        for end, character in enumerate(text, 1):
            while matched >= 0 and self._stop[matched] != character:
                matched = self._shorter[matched]
            matched += 1
            if matched == self.length:
                return end
        self.matched = matched
        return None


@lru_cache(maxsize=64)
def _shorter_matches(stop: str) -> tuple[int, ...]:
    """For each number of characters that match: the next smaller number that matches as well,
    before what follows them is known; -1 where there is none. The choices of a request share it."""
    found = [-1]
    matched = -1
    for character in stop[:-1]:
        while matched >= 0 and stop[matched] != character:
            matched = found[matched]
        matched += 1
        found.append(matched)
    return tuple(found)


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
