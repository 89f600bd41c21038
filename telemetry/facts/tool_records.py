"""Facts about calls of functions. They have counts and times: never a name, an argument or a
result, which are texts of clients and models.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.base import FactStruct as _Fact


class CallOutcome(StrEnum):
    """What became of a call in an answer."""

    VALID = "valid"
    INVALID = "invalid"
    UNFINISHED = "unfinished"
    UNCHECKED = "unchecked"


class ToolCallsMade(_Fact, frozen=True):
    """The answer of a request that could call functions is complete; `by_choice` says how many
    calls each choice has.

    `valid` calls obey their function's schema, `invalid` ones do not, `unfinished` ones were cut by
    a limit, `unchecked` could not be checked in time. `malformed` beginnings of calls became text.
    Reading the calls took `parse_ns` of the time that the request's text took, checking them
    `validate_ns` after the answer was sent. `forgotten` calls of earlier answers are not waited for
    any more, for lack of room.
    """

    request_id: str
    at_ns: int
    by_choice: tuple[int, ...]
    valid: int
    invalid: int
    unfinished: int
    unchecked: int
    malformed: int
    parse_ns: int
    validate_ns: int
    forgotten: int = 0

    @property
    def calls(self) -> int:
        return sum(self.by_choice)

    @property
    def outcomes(self) -> dict[CallOutcome, int]:
        """The number of calls by what became of them."""
        return {
            CallOutcome.VALID: self.valid,
            CallOutcome.INVALID: self.invalid,
            CallOutcome.UNFINISHED: self.unfinished,
            CallOutcome.UNCHECKED: self.unchecked,
        }


class ReturnedCall(msgspec.Struct, frozen=True):
    """An answer whose calls have results now: `results` of them. Its request and its root span
    (32 and 16 hex digits) are named; it was complete at `called_ns`."""

    request_id: str
    trace_id: str
    span_id: str
    called_ns: int
    results: int


class ToolResultsReturned(_Fact, frozen=True):
    """A request brought results of calls. `unknown` of them belong to no call that this server
    remembers."""

    request_id: str
    at_ns: int
    calls: tuple[ReturnedCall, ...]
    unknown: int = 0
