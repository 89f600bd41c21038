"""The calls of one choice: text becomes calls and what is left of text, and calls become JSON."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from service.text.tools.parser import CallPiece, FoundCall, ToolParser
from service.text.tools.tool_format import CALL_ID_CHARACTERS
from service.text.tools.tool_use import ToolUse
from telemetry.facts.clock import Clock

_ID_BYTES = 12


class ToolText:
    """Reads the calls of one choice. `parse_ns` is the time that reading has taken, `mark_ids` are
    special tokens that are a part of the text that it reads."""

    def __init__(self, use: ToolUse, clock: Clock) -> None:
        form = use.form
        new_id = _new_short_id if form.short_ids else _new_id
        self._parser = ToolParser(form, use.names, new_id)
        self._clock = clock
        self.mark_ids = use.mark_ids
        self._pieces: list[CallPiece] = []
        self.parse_ns = 0

    @property
    def calls(self) -> list[FoundCall]:
        return self._parser.calls

    @property
    def malformed(self) -> int:
        """Beginnings of calls that did not go on as one, and became text."""
        return self._parser.malformed

    def push(self, text: str) -> str:
        """The text that is certainly no part of a call; pieces of calls are kept."""
        begin_ns = self._clock.now_ns()
        texts: list[str] = []
        for found in self._parser.push(text):
            if isinstance(found, str):
                texts.append(found)
            else:
                self._pieces.append(found)
        self.parse_ns += self._clock.now_ns() - begin_ns
        return "".join(texts)

    def finish(self) -> str:
        """The output has ended: the text that was held back."""
        return self._parser.finish()

    def take(self) -> list[CallPiece]:
        """What is new of calls since the last `take`."""
        taken, self._pieces = self._pieces, []
        return taken


def delta_calls(pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
    """`tool_calls` of a chunk: one entry a call, the first of a call with id and name."""
    entries: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        call = piece.call
        if piece.begins:
            entries[call.index] = {
                "index": call.index,
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": ""},
            }
        entry = entries.setdefault(call.index, {"index": call.index, "function": {"arguments": ""}})
        entry["function"]["arguments"] += piece.arguments
    return list(entries.values())


def message_calls(calls: Sequence[FoundCall]) -> list[dict[str, Any]]:
    """`tool_calls` of a message."""
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def _new_id() -> str:
    return f"call_{secrets.token_hex(_ID_BYTES)}"


def _new_short_id() -> str:
    return secrets.token_hex(_ID_BYTES)[:CALL_ID_CHARACTERS]
