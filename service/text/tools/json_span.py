"""Finds the end of a JSON object that arrives in pieces, without parsing it."""

from __future__ import annotations


class JsonSpan:
    """Follows one object from its opening brace to the brace that closes it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> int | None:
        """How many characters of `text` belong to the object; None if it goes on after them."""
        for at, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None
