"""Token ids of a prompt, as a list or encoded already, as they are sent to an engine."""

from __future__ import annotations

import msgspec


def length_of(ids: list[int] | msgspec.Raw) -> int:
    """How many token ids there are; encoded ones are not decoded for that."""
    if not isinstance(ids, msgspec.Raw):
        return len(ids)
    head = bytes(memoryview(ids)[:5])
    match head[0]:
        case 0xDC:
            return int.from_bytes(head[1:3])
        case 0xDD:
            return int.from_bytes(head[1:5])
        case first:
            return first & 0x0F


def ids_of(ids: list[int] | msgspec.Raw) -> list[int]:
    """Token ids, decoded if need be."""
    return msgspec.msgpack.decode(ids, type=list[int]) if isinstance(ids, msgspec.Raw) else ids
