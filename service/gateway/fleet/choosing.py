"""Which engine a request goes to: the one with the least tokens outstanding.

Outstanding are the prompt tokens and the most output tokens of the sequences that this gateway has
sent there and that have not ended, and, of what others sent, the prompt tokens that the engine
itself reports. A tie goes to the engine that was chosen longest ago.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.gateway.fleet.link import EngineLink


class LeastOutstanding:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._turn: dict[str, int] = {}
        self._turns = 0

    def choose(self, ready: Iterable[EngineLink]) -> EngineLink | None:
        """None if none is ready."""
        found = min(ready, key=self._rank, default=None)
        if found is not None:
            self._turns += 1
            self._turn[found.name] = self._turns
        return found

    def sent(self, engine: str, tokens: int) -> None:
        self._tokens[engine] = self._tokens.get(engine, 0) + tokens

    def ended(self, engine: str, tokens: int) -> None:
        self._tokens[engine] -= tokens

    def outstanding(self, engine: str) -> int:
        """Tokens of this gateway's sequences there."""
        return self._tokens.get(engine, 0)

    def forget(self, engine: str) -> None:
        """It is in the membership no more; its sequences have ended."""
        self._tokens.pop(engine, None)
        self._turn.pop(engine, None)

    def _rank(self, link: EngineLink) -> tuple[int, int]:
        own = self.outstanding(link.name)
        reported = 0 if link.report is None else link.report.load.prompt_tokens
        return max(own, reported), self._turn.get(link.name, 0)
