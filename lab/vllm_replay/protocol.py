"""The messages between a replay and the process that has vLLM's scheduler.

The replay writes a `Call`, a list of commands; the process answers with an `Answer`, one reply for
each (`telemetry.facts.framing`). Token ids are made up
in the process from block aliases.
"""

from __future__ import annotations

from typing import BinaryIO, Protocol

import msgspec

from telemetry.facts.framing import Unframer, framed

_MOST_BYTES = 1 << 20


class Build(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Make a scheduler. `values` are fields of vLLM's own configuration, by their names."""

    is_async: bool
    blocks_total: int
    block_tokens: int
    max_model_tokens: int
    values: dict[str, bool | int | float | str | None]


class Arrive(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A sequence comes to the scheduler. `aliases` are of its full blocks, output included; None:
    it shares none. An end token comes as output number `end_output`, counted from 1. `arrival` is
    its order among those of one priority. With `waits_for_grammar` it may not run before a
    `GrammarIsReady`."""

    seq_id: int
    prompt_tokens: int
    max_tokens: int
    aliases: tuple[int, ...] | None
    priority: int
    arrival: int
    end_output: int | None
    is_constrained: bool
    waits_for_grammar: bool


class GrammarIsReady(msgspec.Struct, frozen=True, tag=True, gc=False):
    seq_id: int


class Finish(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Abort a sequence, unless it has ended."""

    seq_id: int


class Plan(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Call `schedule`, for the step `number`."""

    number: int


class Commit(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Call `update_from_output` for the step `number`. For one without rows that has been done."""

    number: int


class Flush(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Empty the prefix cache."""


Command = Build | Arrive | GrammarIsReady | Finish | Plan | Commit | Flush


class PlannedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a step, as in `telemetry.facts.engine_records.Row`. `gives` says whether a token
    comes of it; `known_tokens` are the prompt and the outputs that the scheduler has."""

    seq_id: int
    is_prefill: bool
    tokens: int
    context_tokens: int
    known_tokens: int
    gives: bool


class Admission(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sequence came from the queue into the batch; `hit_tokens` of it were in the cache."""

    seq_id: int
    known_tokens: int
    hit_tokens: int


class Planned(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What `schedule` decided, and the state after it: `idle` are running sequences without a row,
    `waiting` is the queue in its order."""

    rows: tuple[PlannedRow, ...]
    admitted: tuple[Admission, ...]
    preempted: tuple[int, ...]
    running: int
    idle: tuple[int, ...]
    waiting: tuple[int, ...]
    waiting_tokens: int
    blocks_used: int
    blocks_cached: int


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sequence ended. `by` is vLLM's name of the status."""

    seq_id: int
    by: str
    output_tokens: int


class Committed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What came of a step: how many tokens each row gave, in the order of the rows; None where the
    sequence had ended before."""

    given: tuple[int | None, ...]
    ended: tuple[Ended, ...]


class Done(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The command was done. `ended` are sequences that ended by it."""

    ended: tuple[Ended, ...] = ()


class Built(msgspec.Struct, frozen=True, tag=True):
    """`version` is vLLM's, `scheduler` the full name of the class, `free_blocks` those of a new
    cache."""

    version: str
    scheduler: str
    free_blocks: int


Reply = Planned | Committed | Done | Built


class Answer(msgspec.Struct, frozen=True):
    """The replies, and whether the scheduler has requests now; or what is wrong."""

    replies: list[Reply] = []
    has_requests: bool = False
    error: str | None = None


class Call(msgspec.Struct, frozen=True):
    """Commands in their order."""

    commands: list[Command]


class SchedulerFailed(Exception):
    """The scheduler, or its process, did not do what it was told; the message is one line."""


class ForeignScheduler(Protocol):
    """A scheduler that does commands, such as that of another process."""

    def do(self, *commands: Command) -> list[Reply]:
        """The reply to each. Raises SchedulerFailed."""
        ...

    @property
    def has_requests(self) -> bool:
        """Whether, after the last command, it wants to be asked for another step."""
        ...


def write_message(stream: BinaryIO, message: Call | Answer) -> None:
    stream.write(framed(msgspec.msgpack.encode(message)))
    stream.flush()


def read_body(stream: BinaryIO) -> bytes | None:
    """The bytes of the next message; None at the end of the stream."""
    unframer = Unframer()
    while piece := stream.read1(_MOST_BYTES):  # type: ignore[attr-defined]
        for body in unframer.feed(piece):
            return body  # one at a time: the other side waits for an answer
    return None
