"""Commands: the only way to change the engine from outside.

They are applied between steps, in the order of arrival, and each leaves a fact, so that
a recorded run can be replayed. The inbox itself is a thread-safe queue; sockets that
fill it live outside the pure core.
"""

from __future__ import annotations

from collections import deque

import msgspec

from service.engine.plan import Grammar, SamplingParams
from telemetry.records import EndReason


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Generate one sequence.

    `max_tokens` bounds the output; the gateway has checked that the prompt fits the
    context. `end_token_ids` end the text (the model's EOS tokens, unless the client asked
    to ignore them), `stop_token_ids` are the client's own.
    """

    seq_id: int
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    tenant: str = ""
    grammar: Grammar | None = None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a sequence now, for `reason`: a disconnect, a timeout, or a stop string that
    the gateway found in the text."""

    seq_id: int
    reason: EndReason


class GrammarReady(msgspec.Struct, frozen=True, tag=True):
    """A sequence's grammar has been compiled (`error` None) or cannot be."""

    seq_id: int
    compile_ns: int
    cached: bool
    error: str | None


Command = Submit | Cancel | GrammarReady


class Inbox:
    """Commands on their way in; any thread may put, the engine loop drains."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()

    def put(self, command: Command) -> None:
        self._commands.append(command)

    def drain(self) -> list[Command]:
        return [self._commands.popleft() for _ in range(len(self._commands))]
