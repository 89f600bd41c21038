"""What connections between gateways and nodes have carried, refused and lost, since the start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """Why a connection was refused or ended."""

    WRONG_KEY = "wrong_key"
    PROTOCOL = "protocol"  # the other end speaks another version
    NOT_PROVEN = "not_proven"  # it did not prove in time that it has the key
    TOO_MUCH = "too_much"  # it sent more than a peer may that has proved nothing
    TOO_LARGE = "too_large"  # a frame longer than any is; so look bytes of another protocol
    GARBAGE = "garbage"  # a frame that is no message, or not one that may come now
    FORGED = "forged"  # a frame without the session's seal
    BACKLOG = "backlog"  # it does not read
    SILENT = "silent"  # no sign of life within the deadline
    TOO_MANY = "too_many"  # connections
    INTERNAL = "internal"  # this end could not handle a message: its log says why


@dataclass(slots=True)
class WireCounts:
    """Counts of all connections of one process. `lost_frames` were not written when a connection
    ended."""

    faults: Counter[Fault] = field(default_factory=Counter)
    connected: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    lost_frames: int = 0
