"""What a membership says, wherever it has it from."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

MOST_MEMBERS = 1024


class Role(StrEnum):
    """What an engine is for."""

    ANY = "any"  # prompts and outputs; what its node says counts
    PREFILL = "prefill"  # prompts, whose KV it sends to others; outputs where no other engine is
    DECODE = "decode"  # outputs, and prompts that no other engine computes


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One engine node. A draining one gets no new requests; its own go on. Other engines get KV
    from it at `kv_address`; None: at its host, and the port that its node says."""

    name: str
    host: str
    port: int
    role: Role = Role.ANY
    draining: bool = False
    kv_address: tuple[str, int] | None = None


class Membership(Protocol):
    """Who is there. A gateway asks about once a second."""

    @property
    def key(self) -> bytes:
        """The key that gateways and nodes share."""
        ...

    def members(self) -> dict[str, Member]:
        """The members by name. What cannot be read leaves the members as they were; the problem is
        logged."""
        ...
