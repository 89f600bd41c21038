"""Tells text and calls apart in an output that arrives in pieces.

What may be the beginning of a marker is held back, so no part of one is ever sent as text. A call
is passed on as it comes: first its name, when the arguments begin, then pieces of the arguments.
What does not go on as the format says is text from there to the end, and is counted.

    TEXT --marker--> HEAD --"{"--> ARGUMENTS --object closed--> TAIL --separator--> HEAD
                       |                                         |
                       +------- anything else ----> PLAIN <------+
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from service.text.detokenizer import overlap
from service.text.tools.json_span import JsonSpan
from service.text.tools.tool_format import CALL_ID_CHARACTERS, ToolFormat


@dataclass(slots=True)
class FoundCall:
    """A call; `arguments` is JSON text, whole if `is_whole`."""

    index: int
    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    is_whole: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of a call; `begins` in the first one of each."""

    call: FoundCall
    arguments: str
    begins: bool = False


class _State(Enum):
    TEXT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    PLAIN = auto()


class ToolParser:
    """Reads one choice. `malformed` counts beginnings of calls that did not go on as one, or were
    cut before their arguments."""

    def __init__(self, form: ToolFormat, names: Collection[str], new_id: Callable[[], str]) -> None:
        """`names` are the functions that may be called, `new_id` makes ids of calls."""
        self._form = form
        self._names = names
        self._new_id = new_id
        self._state = _State.TEXT
        self._held = ""
        self._lead = ""  # what of HEAD was taken already, in case that it is text after all
        self._span = JsonSpan()
        self._may_begin_bare = not form.marker_needed
        self.calls: list[FoundCall] = []
        self.malformed = 0

    def push(self, text: str) -> list[str | CallPiece]:
        """What is certain with this piece, in order."""
        found: list[str | CallPiece] = []
        self._held += text
        while self._held and self._step(found):
            pass
        return found

    def finish(self) -> str:
        """The output has ended: the text that was held back. Of a call that was cut, neither what
        comes before its arguments nor what closes it is text."""
        held, self._held = self._held, ""
        if self._state is _State.HEAD:
            self.malformed += 1
            return ""
        if self._state is _State.TAIL:
            return ""  # what is held there began as what closes a call, or as the next one
        return held

    def _step(self, found: list[str | CallPiece]) -> bool:
        """Go on by one state; False when more text is needed."""
        match self._state:
            case _State.TEXT:
                return self._read_text(found)
            case _State.HEAD:
                return self._read_head(found)
            case _State.ARGUMENTS:
                return self._read_arguments(found)
            case _State.TAIL:
                return self._read_tail()
            case _State.PLAIN:
                found.append(self._held)
                self._held = ""
                return False

    def _read_text(self, found: list[str | CallPiece]) -> bool:
        marker = self._form.marker
        if self._may_begin_bare:
            self._may_begin_bare = False
            if self._held.startswith(self._form.head[0]):
                self._state = _State.HEAD
                return True
        before, mark, after = self._held.partition(marker)
        if mark:
            self._state, self._held, self._lead = _State.HEAD, after, marker
        else:
            cut = len(before) - overlap(before, marker)
            before, self._held = before[:cut], before[cut:]
        if before:
            found.append(before)
        return bool(mark)

    def _read_head(self, found: list[str | CallPiece]) -> bool:
        """The opening, the name and all up to the arguments."""
        form, parts = self._form, _Parts(self._held)
        if form.separator is None or not self.calls:
            parts.take(form.opening)
        parts.take(form.head)
        name = parts.take_one_of(self._names, before=form.id_mark or form.middle)
        call_id = ""
        if form.id_mark:
            parts.take(form.id_mark)
            call_id = parts.take_characters(CALL_ID_CHARACTERS)
        parts.take(form.middle)
        if parts.is_wrong or parts.rest[:1] not in ("", "{"):
            return self._becomes_plain()
        if parts.is_short or not parts.rest:
            return False
        call = FoundCall(len(self.calls), call_id or self._new_id(), name)
        self.calls.append(call)
        found.append(CallPiece(call, "", begins=True))
        self._state, self._held, self._span = _State.ARGUMENTS, parts.rest, JsonSpan()
        return True

    def _read_arguments(self, found: list[str | CallPiece]) -> bool:
        call = self.calls[-1]
        end = self._span.push(self._held)
        piece = self._held if end is None else self._held[:end]
        call.pieces.append(piece)
        found.append(CallPiece(call, piece))
        self._held = self._held[len(piece) :]
        if end is not None:
            call.is_whole = True
            self._state = _State.TAIL
        return end is not None

    def _read_tail(self) -> bool:
        """What closes a call, and what says whether another follows."""
        form = self._form
        ended = form.tail + form.close
        if form.separator is not None:
            goes_on, self._lead = form.tail + form.separator, ""
        else:
            goes_on, self._lead = ended + form.between + form.marker, form.marker
        if self._held.startswith(goes_on):
            self._state, self._held = _State.HEAD, self._held[len(goes_on) :]
            return True
        if goes_on.startswith(self._held) or ended.startswith(self._held):
            return False
        if not self._held.startswith(ended):
            self.malformed += 1
        self._state, self._held = _State.PLAIN, self._held.removeprefix(ended)
        return True

    def _becomes_plain(self) -> bool:
        self.malformed += 1
        self._state, self._held = _State.PLAIN, self._lead + self._held
        return True


class _Parts:
    """Takes expected parts off a text that may not be all there yet."""

    def __init__(self, text: str) -> None:
        self.rest = text
        self.is_short = False
        self.is_wrong = False

    def take(self, part: str) -> None:
        self.take_one_of((part,))

    def take_one_of(self, parts: Collection[str], before: str = "") -> str:
        """The one of `parts` that comes, followed by `before`, which is not taken."""
        if self.is_short or self.is_wrong:
            return ""
        for part in parts:
            if self.rest.startswith(part + before):
                self.rest = self.rest[len(part) :]
                return part
        self.is_short = any((part + before).startswith(self.rest) for part in parts)
        self.is_wrong = not self.is_short
        if self.is_short:
            self.rest = ""
        return ""

    def take_characters(self, count: int) -> str:
        if self.is_short or self.is_wrong:
            return ""
        self.is_short = len(self.rest) < count
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken
