"""The parts that a call has in a model's output, whatever the model.

    marker opening head NAME middle ARGUMENTS tail [separator head NAME ...] close

Formats with a `separator` write all calls as one list behind one marker. The others repeat the
whole, with `between` in between. The grammar (`call_grammar`) forces exactly these parts, the
parser expects exactly these parts, and `write` puts calls of earlier turns into a prompt with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

CALL_ID_CHARACTERS = 9
"""Of an id that a model writes itself, or whose template insists on it (Mistral's)."""


class ToolFormatName(StrEnum):
    """The formats, as `--tool-format` names them."""

    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral-args"
    MISTRAL_CALL_ID = "mistral-call-id"
    SMOLLM2 = "smollm2"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of an earlier turn; `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way of writing calls.

    `marker` begins the calls; it is plain text, or the text of a special token. If it is not
    `marker_needed`, an answer whose first character is that of `head` is a call too.
    `id_mark` stands before an id that the model writes between name and `middle`.
    `short_ids`: ids have CALL_ID_CHARACTERS letters and digits, and the template refuses others.
    `most_calls`: how many calls one answer may have, None for any number.
    """

    name: ToolFormatName
    marker: str
    opening: str = ""
    head: str = '{"name": "'
    middle: str = '", "arguments": '
    tail: str = "}"
    separator: str | None = None
    close: str = ""
    between: str = ""
    id_mark: str = ""
    marker_needed: bool = True
    short_ids: bool = False
    most_calls: int | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Parts that may be special tokens of a vocabulary."""
        return tuple(mark for mark in (self.marker, self.middle, self.id_mark) if mark)

    def write(self, calls: Sequence[WrittenCall]) -> str:
        """The calls as the model would have written them."""
        bodies = [self._body(call) for call in calls]
        if self.separator is None:
            blocks = [f"{self.marker}{self.opening}{body}{self.close}" for body in bodies]
            return self.between.join(blocks)
        return f"{self.marker}{self.opening}{self.separator.join(bodies)}{self.close}"

    def _body(self, call: WrittenCall) -> str:
        written_id = f"{self.id_mark}{call.call_id}" if self.id_mark else ""
        return f"{self.head}{call.name}{written_id}{self.middle}{call.arguments}{self.tail}"
