"""Tells a node what its engine's prefix cache holds, once it has asked."""

from __future__ import annotations

from service.engine.kv.held_prefixes import HeldPrefixes
from service.engine.kv.prefix import PrefixCache
from service.process import frames
from service.process.gateway_connection import GatewayConnection


class PrefixNews:
    """After each step what came and went, one message of bounded size; not while the node does not
    read. What is more is said after the next steps."""

    def __init__(self, cache: PrefixCache, gateway: GatewayConnection) -> None:
        self._cache, self._gateway = cache, gateway
        self._held: HeldPrefixes | None = None

    def watch(self, asked: frames.WatchPrefixes) -> None:
        """Begin; the first message is whole."""
        self._held = self._cache.watch(max(1, asked.stride))

    @property
    def has_more(self) -> bool:
        """Whether `say` would say something now."""
        held = self._held
        return held is not None and held.has_news and not self._gateway.is_behind

    def say(self) -> None:
        if self._held is not None and self.has_more:
            news = self._held.take()
            self._gateway.send(frames.PrefixesHeld(news.whole, news.added, news.removed))
