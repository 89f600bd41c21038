"""Tells a node what its engine's prefix cache holds, once it has asked."""

from __future__ import annotations

from service.engine.kv.held_prefixes import HeldPrefixes
from service.engine.kv.prefix import PrefixCache
from service.process import frames
from service.process.gateway_connection import GatewayConnection


class PrefixNews:
    """After each step what came and went; not while the node does not read."""

    def __init__(self, cache: PrefixCache, gateway: GatewayConnection) -> None:
        self._cache, self._gateway = cache, gateway
        self._held: HeldPrefixes | None = None

    def watch(self, asked: frames.WatchPrefixes) -> None:
        """Begin; the first message is whole."""
        self._held = self._cache.watch(max(1, asked.stride))

    def say(self) -> None:
        held = self._held
        while held is not None and held.has_news and not self._gateway.is_behind:
            news = held.take()
            self._gateway.send(frames.PrefixesHeld(news.whole, news.added, news.removed))
