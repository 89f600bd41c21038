"""What every fact is, whichever file defines it."""

from __future__ import annotations

import msgspec


class FactStruct(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Encodes as a MessagePack array headed by the class name."""
