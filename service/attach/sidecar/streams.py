"""What the sidecar knows of one connection, and what it counts of all of them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from service.attach.wire import Hello, Role, TurnedOff

_NOTES_KEPT = 32


class Refusal(StrEnum):
    """Why a connection was closed by the sidecar."""

    MALFORMED = "malformed"  # no message of ours, or out of order
    TOO_LARGE = "too_large"  # a message, or a text in it
    PROTOCOL = "protocol"  # the adapter is of another release
    SECOND_CORE = "second_core"  # another engine core than the one that is observed
    TOO_MANY = "too_many"  # connections
    USER = "user"  # a process of another user
    SILENT = "silent"  # no Hello in time
    CLOCK = "clock"  # the stamps of the process are ahead of ours: its facts would wait for ever


@dataclass(slots=True)
class Stream:
    """One connection. `pid` is the process as this host sees it; None: it cannot be seen from
    here."""

    hello: Hello
    pid: int | None
    connected_ns: int
    heard_ns: int
    turn_ns: int | None = None
    lost_facts: int = 0
    facts: int = 0

    @property
    def is_core(self) -> bool:
        return self.hello.role is Role.ENGINE_CORE

    @property
    def who(self) -> tuple[Role, int, int]:
        """The process: the same one has it after a reconnect."""
        return self.hello.role, self.hello.pid, self.hello.index


class Note(msgspec.Struct, frozen=True):
    """One line for people about a connection: refused, or a hook that an adapter turned off."""

    at_ns: int
    kind: str
    text: str


@dataclass(slots=True)
class Counts:
    """What happened to connections and sequences since the start. `lost_facts` are those that the
    adapters dropped, over all connections that there were."""

    connections: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)
    joined: int = 0
    core_only: int = 0
    dropped_names: int = 0
    late: int = 0
    turned_off: Counter[str] = field(default_factory=Counter)
    lost_before: int = 0
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=_NOTES_KEPT))

    def refuse(self, at_ns: int, why: Refusal, text: str) -> None:
        self.refused[why] += 1
        self.notes.append(Note(at_ns, why.value, text))

    def turn_off(self, off: TurnedOff, role: Role) -> None:
        """`hook` is a name of the adapter's; the label of a metric is the process that it is of."""
        self.turned_off[role.value] += 1
        what = "the adapter" if off.is_all else off.hook
        self.notes.append(Note(off.at_ns, "turned_off", f"{role.value}: {what}: {off.reason}"))
