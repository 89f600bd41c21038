"""Small numbers that stand for hashes of KV blocks, so that shared prefixes are visible and the
hashes stay in the engine's process.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 65_536


class BlockAliases:
    """The last 65,536 blocks that were asked for. A block that comes again later gets another
    number: that it was shared is not seen then."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._next = 0

    def of(self, hashes: Sequence[bytes]) -> tuple[int, ...]:
        """One alias a block."""
        numbers = self._numbers
        found: list[int] = []
        for one in hashes:
            number = numbers.pop(one, None)
            if number is None:
                number = self._next
                self._next += 1
                if len(numbers) >= _MOST:
                    del numbers[next(iter(numbers))]
            numbers[one] = number  # the latest last
            found.append(number)
        return tuple(found)
