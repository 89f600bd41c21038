"""The three ways to choose. Each sees the same book and gives predictions, the chosen one first.

LeastFinish      the least predicted finish, with the harm to the others there, of a few
                 candidates: the least loaded engines, and holders of the longest prefixes. So a
                 choice takes the same time among a thousand engines as among ten.
PrefixAffinity   the engine that holds the longest prefix, or its place on a ring of hashes;
                 none above a bound on its load
RoundRobin       one after the other, whatever they do
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from math import ceil
from operator import attrgetter
from typing import Protocol, assert_never

from service.fleet.routing.engine_view import SILENT_NS, EngineView
from service.fleet.routing.prediction import Predicted
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.ring import Ring, hash_of
from service.fleet.routing.router_state import RouterState, tokens_at
from telemetry.facts.fleet.routing_records import RoutingPolicy

LEAST_LOADED_CANDIDATES = 3
LATE_CANDIDATES = 3
"""Engines with a longer wait that are weighed for a request that is late."""
TTFT_TARGET_SHARE = 0.7
"""A first token that is predicted within this share of its target is in time."""
MAX_WORK_RATIO, MAX_WORK_RATIO_SHARED = 1.1, 2.0
"""A late request goes where its prompt takes at most so many times the least work: to the longest
wait, where more work would make others late too; where prompts are shared, to the least score."""
HOLDER_CANDIDATES, MAX_HOLDER_SETS = 5, 4
MAX_SCANNED = 48
"""Least loaded engines that are looked through for those that hold a prefix that many hold."""
_MASK = (1 << 64) - 1


class Policy(Protocol):
    """`choose` changes nothing; `sent` is told what was done."""

    def joined(self, view: EngineView) -> None: ...

    def left(self, view: EngineView) -> None: ...

    def choose(
        self, request: RouteRequest, now_ns: int, excluded: Collection[int]
    ) -> list[Predicted]: ...

    def sent(self, view: EngineView) -> None: ...


class LeastFinish:
    """Weighs candidates by finish and harm; a seeded hash decides between equal ones."""

    def __init__(self, book: RouterState) -> None:
        self._book = book

    def joined(self, view: EngineView) -> None:
        pass

    def left(self, view: EngineView) -> None:
        pass

    def sent(self, view: EngineView) -> None:
        pass

    def choose(
        self, request: RouteRequest, now_ns: int, excluded: Collection[int]
    ) -> list[Predicted]:
        book = self._book
        found = self._holders(request, excluded)
        self._add_least_loaded(found, now_ns, excluded)
        salt = hash_of(book.settings.seed, request.request_id)
        # one more by chance: an engine whose place in the order is out of date is seen at last
        index = book.order.at(salt % len(book.order))
        if index not in found and index not in excluded:
            found[index] = 0
        weighed = book.predicted(found, request, now_ns)
        weighed.sort(key=attrgetter("score"))
        target_ns = request.ttft_target_ns
        if target_ns is None or not book.settings.late_apart_ns:
            return _break_tie(weighed, salt)
        if weighed[0].ttft_ns <= (target_ns if book.is_sharing else TTFT_TARGET_SHARE * target_ns):
            return _break_tie(weighed, salt)
        in_time = _in_time(weighed, target_ns)
        if in_time:
            return [*_break_tie(in_time, salt), *(one for one in weighed if one not in in_time)]
        best = self._for_late(weighed, request, now_ns, excluded)
        return [best, *(one for one in weighed if one is not best)]

    def _for_late(
        self,
        weighed: list[Predicted],
        request: RouteRequest,
        now_ns: int,
        excluded: Collection[int],
    ) -> Predicted:
        """The engine for a request that is late on every one, where it delays others least.

        prompts share prefixes   lowest score among engines whose wait is within `late_apart_ns` of
                                 the shortest, and whose prompt work is at most
                                 MAX_WORK_RATIO_SHARED times the least
        every wait is short      its own length makes it late: the earliest first token if that
                                 meets the target without a margin, else the lowest score
        otherwise                the longest wait among those and up to LATE_CANDIDATES more, with
                                 at most MAX_WORK_RATIO times the least work
        """
        book, apart_ns = self._book, self._book.settings.late_apart_ns
        least_ns, target_ns = min(one.before_ns for one in weighed), request.ttft_target_ns or 0
        most_ns = least_ns + apart_ns
        near = [one for one in weighed if one.before_ns <= most_ns]
        if book.is_sharing:
            return min(_cheap(near, MAX_WORK_RATIO_SHARED), key=attrgetter("score"))
        if least_ns <= TTFT_TARGET_SHARE * target_ns / 2:
            # its own length makes it late: others have room
            soonest = min(weighed, key=attrgetter("ttft_ns"))
            return soonest if soonest.ttft_ns <= target_ns else weighed[0]
        seen = {one.view.index for one in weighed}
        more = book.predicted(
            {
                index: book.cached_tokens(index, request)
                for index in book.order.up_to(apart_ns, LATE_CANDIDATES)
                if index not in seen and index not in excluded
            },
            request,
            now_ns,
        )
        near += [one for one in more if one.before_ns <= most_ns]
        return max(_cheap(near, MAX_WORK_RATIO), key=attrgetter("before_ns"))

    def _holders(self, request: RouteRequest, excluded: Collection[int]) -> dict[int, int]:
        """Engines that hold most of the prompt, with the tokens that they hold. Of many that hold
        as much, the least loaded. At most `MAX_HOLDER_SETS` different sets are looked at."""
        views, found = self._book.views, dict[int, int]()
        last = groups = 0
        for depth, holders in self._book.prefixes.matches(request.anchors):
            if len(holders) == last:
                continue  # the same ones: who holds more, holds this too
            last, groups = len(holders), groups + 1
            for index in self._group(holders):
                if index not in found and index not in excluded:
                    found[index] = tokens_at(views[index], depth, request)
            if len(found) >= HOLDER_CANDIDATES or groups == MAX_HOLDER_SETS:
                break
        return found

    def _group(self, holders: Collection[int]) -> list[int]:
        """The prefix holders that are weighed: all if few, else the least loaded and others."""
        views = self._book.views
        if len(holders) <= 2 * HOLDER_CANDIDATES:
            return [index for index in holders if not views[index].draining]
        least = self._book.order.least(MAX_SCANNED)
        group = list(islice(filter(holders.__contains__, least), HOLDER_CANDIDATES))
        some = islice(holders, HOLDER_CANDIDATES)
        group += [index for index in some if not views[index].draining]
        return group

    def _add_least_loaded(
        self, found: dict[int, int], now_ns: int, excluded: Collection[int]
    ) -> None:
        """The first of the order; beyond those, silent ones and excluded ones do not count."""
        added = 0
        views = self._book.views
        for index in self._book.order.least(MAX_SCANNED + len(excluded)):
            if index in excluded:
                continue
            if index not in found:
                found[index] = 0
            added += now_ns - views[index].signal_ns <= SILENT_NS
            if added == LEAST_LOADED_CANDIDATES:
                return


class PrefixAffinity:
    """The holder of the longest prefix that is not above the bound; else the first such engine on
    the ring, from the place of the prompt's first anchor on. The load is what this router has
    outstanding there."""

    def __init__(self, book: RouterState) -> None:
        self._book = book
        self._ring = Ring()

    def joined(self, view: EngineView) -> None:
        self._ring.add(view.index, view.name)

    def left(self, view: EngineView) -> None:
        self._ring.remove(view.index)

    def sent(self, view: EngineView) -> None:
        pass

    def choose(
        self, request: RouteRequest, now_ns: int, excluded: Collection[int]
    ) -> list[Predicted]:
        index = self._holder(request, excluded)
        if index is None:
            index = self._on_ring(request, excluded)
        cached_tokens = self._book.cached_tokens(index, request)
        return self._book.predicted({index: cached_tokens}, request, now_ns)

    def _holder(self, request: RouteRequest, excluded: Collection[int]) -> int | None:
        last = 0
        for _, holders in self._book.prefixes.matches(request.anchors):
            if len(holders) == last:
                continue  # the same ones
            last = len(holders)
            for index in islice(holders, MAX_SCANNED):
                if index not in excluded and self._has_room(index):
                    return index
        return None

    def _on_ring(self, request: RouteRequest, excluded: Collection[int]) -> int:
        key = request.anchors[0] if request.anchors else hash_of(request.request_id)
        first = None
        for index in self._ring.walk(key):
            if index in excluded or index not in self._book.order:
                continue
            if self._has_room(index):
                return index
            first = index if first is None else first
        assert first is not None, "the caller asks only where an engine may be chosen"
        return first

    def _has_room(self, index: int) -> bool:
        book = self._book
        if index not in book.order:
            return False
        most = ceil(book.settings.load_bound * (book.outstanding + 1) / len(book.order))
        return len(book.views[index].outstanding) < most


class RoundRobin:
    """In the order in which they joined."""

    def __init__(self, book: RouterState) -> None:
        self._book = book
        self._last = -1

    def joined(self, view: EngineView) -> None:
        pass

    def left(self, view: EngineView) -> None:
        pass

    def sent(self, view: EngineView) -> None:
        self._last = view.index

    def choose(
        self, request: RouteRequest, now_ns: int, excluded: Collection[int]
    ) -> list[Predicted]:
        book, count = self._book, len(self._book.views)
        for step in range(1, count + 1):
            index = (self._last + step) % count
            if index in book.order and index not in excluded:
                cached_tokens = book.cached_tokens(index, request)
                return book.predicted({index: cached_tokens}, request, now_ns)
        raise AssertionError("the caller asks only where an engine may be chosen")


def policy_of(policy: RoutingPolicy, book: RouterState) -> Policy:
    match policy:
        case RoutingPolicy.LEAST_FINISH:
            return LeastFinish(book)
        case RoutingPolicy.PREFIX_AFFINITY:
            return PrefixAffinity(book)
        case RoutingPolicy.ROUND_ROBIN:
            return RoundRobin(book)
        case _:
            assert_never(policy)


def _in_time(weighed: list[Predicted], target_ns: int) -> list[Predicted]:
    """The engines where the first token is expected in time, with a margin: the estimate may be
    wrong. An engine that has to compute more of the prompt than another one has to do so in the
    margin too, because others would be late for it."""
    least_ns = min(one.work_ns for one in weighed)
    most_ns = TTFT_TARGET_SHARE * target_ns
    return [one for one in weighed if one.ttft_ns + one.work_ns - least_ns <= most_ns]


def _cheap(weighed: list[Predicted], times: float) -> list[Predicted]:
    """The engines where the prompt takes at most so many times as long as where it takes least."""
    most_ns = times * min(one.work_ns for one in weighed)
    return [one for one in weighed if one.work_ns <= most_ns]


def _break_tie(weighed: list[Predicted], salt: int) -> list[Predicted]:
    """Equally good ones in an order that differs from request to request."""
    best = weighed[0].score
    if len(weighed) == 1 or weighed[1].score > best:
        return weighed
    equal = [one for one in weighed if one.score == best]
    equal.sort(key=lambda one: mixed(salt ^ one.view.name_hash))
    return [*equal, *weighed[len(equal) :]]


def mixed(value: int) -> int:
    """64 bits well mixed (the finalizer of splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
