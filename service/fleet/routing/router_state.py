"""What a router knows: its engines, their order by load, who holds which prefix, usual lengths."""

from __future__ import annotations

from collections.abc import Mapping

from service.fleet.routing.anchors import STRIDE_BLOCKS
from service.fleet.routing.engine_view import EngineView, Sent
from service.fleet.routing.load_order import LoadOrder
from service.fleet.routing.prediction import Predicted, predict
from service.fleet.routing.prefix_index import MOST_ANCHORS, PrefixIndex
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import PrefixChanges

_LEARNED = 1 / 64
"""Weight of one more request in the means of lengths."""
_SHARING = 0.25
"""Share of prompt tokens that engines held lately, from which on prompts count as shared."""


class RouterState:
    """The one place where engines that may be chosen are kept: those in `order`."""

    def __init__(self, settings: RoutingSettings) -> None:
        self.settings = settings
        self.views: list[EngineView] = []
        """The engines by index; one that left stays until another takes its place."""
        self._free: list[int] = []
        self.by_name: dict[str, EngineView] = {}
        self.order = LoadOrder()
        self.prefixes = PrefixIndex()
        self.outstanding = 0
        self.mean_outputs = float(settings.first_output_tokens)
        self.mean_prompt = 0.0
        self.held_share = 0.0
        self._usual = _usual(0)

    @property
    def is_sharing(self) -> bool:
        """Whether prompts have much in common with those before them."""
        return self.held_share >= _SHARING

    def add(self, name: str, incarnation: int, block_tokens: int, now_ns: int) -> EngineView:
        """An engine may be chosen from now on."""
        index = self._free.pop() if self._free else len(self.views)
        view = EngineView(index, name, incarnation, block_tokens, now_ns)
        self.views[index : index + 1] = [view]
        self.by_name[name] = view
        self.changed(view, now_ns)
        return view

    def drop(self, view: EngineView) -> None:
        """An engine is gone, with all that it held."""
        del self.by_name[view.name]
        self._free.append(view.index)
        self.order.remove(view.index)
        self.prefixes.forget(view.index)
        self.outstanding -= len(view.outstanding)

    def changed(self, view: EngineView, now_ns: int) -> None:
        """Put an engine where it belongs: by what a usual request without a prefix would cost."""
        if view.draining:
            self.order.remove(view.index)
            return
        (usual,) = self.predicted({view.index: 0}, self._usual, now_ns)
        self.order.set(view.index, int(usual.score))

    def predicted(
        self, held: Mapping[int, int], request: RouteRequest, now_ns: int
    ) -> list[Predicted]:
        """For engines, by index with the tokens of the prompt that they hold."""
        weight = self.settings.harm_weight
        return predict(held, self.views, request, now_ns, self.mean_outputs, weight)

    def cached_tokens(self, index: int, request: RouteRequest) -> int:
        """How much of a prompt an engine is believed to hold."""
        depth = self.prefixes.depth(index, request.anchors)
        return tokens_at(self.views[index], depth, request) if depth else 0

    def take_prefixes(self, view: EngineView, changes: PrefixChanges) -> None:
        """What an engine reports about its cache. After a message that was lost nothing is known
        but what this router sent, until the engine reports again what it holds. One that holds
        more than a message can say reports a part of it, which replaces nothing."""
        added = changes.added
        if changes.whole or changes.number - 1 != (view.prefix_number or 0):
            self.prefixes.replace(view.index, added)
            for sent in view.outstanding.values():
                self.prefixes.add(view.index, sent.anchors)
        else:
            self.prefixes.remove(view.index, changes.removed)
            self.prefixes.add(view.index, added)
        view.prefix_number = changes.number

    def sent(self, view: EngineView, sent: Sent) -> None:
        """A request was sent to an engine, which will hold its prompt."""
        view.sent(sent)
        self.outstanding += 1
        self.prefixes.add(view.index, sent.anchors, self._most_anchors(view))
        self.changed(view, sent.sent_ns)
        held = 1.0 - sent.tokens / max(1, sent.context_tokens * sent.prompts)
        self.held_share += _LEARNED * (held - self.held_share)
        self.mean_prompt += _LEARNED * (sent.context_tokens - self.mean_prompt)
        if abs(self.mean_prompt - self._usual.prompt_tokens) > self.mean_prompt / 8:
            self._usual = _usual(round(self.mean_prompt))

    def choice_ended(self, view: EngineView, request_id: str, now_ns: int) -> None:
        """One of a request's sequences is over."""
        view.choice_ended(request_id)
        self.changed(view, now_ns)

    def ended(
        self, view: EngineView, request_id: str, output_tokens: int | None, now_ns: int
    ) -> None:
        """A request is over, with the tokens of all its sequences; None: not by the engine."""
        sent = view.ended(request_id, output_tokens is not None)
        self.outstanding -= 1
        if output_tokens:
            each = output_tokens / sent.sequences
            self.mean_outputs += _LEARNED * (each - self.mean_outputs)
        self.changed(view, now_ns)

    def check(self) -> None:
        """Walk all state; raises AssertionError."""
        self.prefixes.check()
        self.order.check()
        live = [view for view in self.views if view.index not in self._free]
        assert {view.name: view for view in live} == self.by_name
        assert all(self.views[view.index] is view for view in live)
        assert sum(len(view.outstanding) for view in live) == self.outstanding
        for view in live:
            assert view.draining != (view.index in self.order), view.name
        assert len(self.order) == sum(not view.draining for view in live)

    def _most_anchors(self, view: EngineView) -> int:
        """An engine that reports no prefixes holds no more than its blocks do."""
        if view.prefix_number is not None or view.report is None:
            return MOST_ANCHORS
        return min(MOST_ANCHORS, max(1, view.report.blocks_total // STRIDE_BLOCKS))


def _usual(prompt_tokens: int) -> RouteRequest:
    """A request by which engines are put in order."""
    return RouteRequest(request_id="", prompt_tokens=prompt_tokens + 1, max_tokens=1 << 30)


def tokens_at(view: EngineView, depth: int, request: RouteRequest) -> int:
    """The tokens of a prompt's first `depth` anchors."""
    return min(depth * STRIDE_BLOCKS * view.block_tokens, request.prompt_tokens - 1)
