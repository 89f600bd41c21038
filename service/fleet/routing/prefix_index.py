"""Which engines hold which prefixes, as far as the router knows.

Two sources, one index: what engines report (`PrefixChanges`), and what this router sent, which is
believed until the engine reports that it is gone. An engine that reports no prefixes is known by
the second alone: what was not used for longest is forgotten as its cache would.

Prompts have many anchors, and those of a stretch of a prompt are held by the same engines. So what
is kept, found and moved is a *run*: anchors that came one after the other, were used together by
whoever holds them, and have the same holders. Whoever uses a part of a run splits it.

    sent to A   a b c d e f         one run, of A
    sent to B   a b c d x y         runs  a b c d  of A, B;  e f  of A;  x y  of B
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from service.fleet.routing.prefix_runs import MOST_TOGETHER, Held, Run, Use

MOST_ANCHORS = 16_384
"""Most anchors of one engine. With blocks of 16 tokens it is a million tokens of cache."""
_AT_ONCE = 16
"""Anchors that are asked for in one call: nobody holds those of a new prompt."""


class PrefixIndex:
    """Owns both directions: anchor to its run with the engines that hold it, engine to its runs."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def held(self, index: int) -> list[int]:
        """Anchors that an engine is believed to hold, that used longest ago first."""
        held = self._held.get(index)
        return [] if held is None else [one for run in held.runs() for one in run.anchors]

    def add(self, index: int, anchors: Sequence[int], most: int = MOST_ANCHORS) -> None:
        """An engine holds these. What was added longest ago beyond `most` is forgotten."""
        held = self._held.get(index)
        if held is None:
            held = self._held[index] = Held()
        place = 0
        while place < len(anchors):
            run = self._runs.get(anchors[place])
            run = self._new(anchors, place) if run is None else self._cut(run, anchors, place)
            place += len(run.anchors)
            use = run.holders.get(index)
            if use is None:
                run.holders[index] = held.append(run)
            else:
                held.move_to_end(use)
        while held.anchors > most:
            run = held.oldest()
            if len(run.anchors) > held.anchors - most:
                run = self._split(run, held.anchors - most)[0]
            self._unlink(index, held, run)

    def remove(self, index: int, anchors: Sequence[int]) -> None:
        """An engine holds these no more; those that it was not believed to hold are no matter."""
        held, place = self._held.get(index), 0
        if held is None:
            return
        while place < len(anchors):
            run = self._runs.get(anchors[place])
            if run is None or index not in run.holders:
                place += 1
                continue
            run = self._cut(run, anchors, place)
            place += len(run.anchors)
            self._unlink(index, held, run)

    def replace(self, index: int, anchors: Sequence[int], most: int = MOST_ANCHORS) -> None:
        """An engine holds these and no others."""
        kept = set(anchors)
        self.remove(index, [one for one in self.held(index) if one not in kept])
        self.add(index, anchors, most)

    def forget(self, index: int) -> None:
        """An engine is gone."""
        held = self._held.pop(index, None)
        if held is not None:
            for run in list(held.runs()):
                self._unlink(index, held, run)

    def depth(self, index: int, anchors: tuple[int, ...]) -> int:
        """How many of a prompt's anchors an engine is believed to hold."""
        for depth, holders in self.matches(anchors):
            if index in holders:
                return depth
        return 0

    def matches(self, anchors: tuple[int, ...]) -> Iterator[tuple[int, dict[int, Use]]]:
        """How many of a prompt's anchors are held, and by whom, the most first; of those that are
        held by the same engines the last. Engines that hold more are among the holders of less."""
        runs, depth = self._runs, len(anchors)
        while depth:
            run = runs.get(anchors[depth - 1])
            if run is None:
                depth -= 1
                if runs.keys().isdisjoint(anchors[max(0, depth - _AT_ONCE) : depth]):
                    depth = max(0, depth - _AT_ONCE)
                continue
            yield depth, run.holders
            own = run.anchors
            count = len(own)
            if own[-1] != anchors[depth - 1]:
                count = own.index(anchors[depth - 1]) + 1
            depth -= count if own[:count] == anchors[max(0, depth - count) : depth] else 1

    def check(self) -> None:
        """Both directions agree; raises AssertionError."""
        for anchor, run in self._runs.items():
            assert run.anchors.count(anchor) == 1, (anchor, run.anchors)
            assert all(self._runs[one] is run for one in run.anchors), run.anchors
            assert run.holders, f"anchors that nobody holds: {run.anchors}"
        there = {(id(run), index) for index, held in self._held.items() for run in held.runs()}
        here = {(id(run), index) for run in self._runs.values() for index in run.holders}
        assert here == there, sorted(here ^ there)[:4]
        for index, held in self._held.items():
            assert held.anchors == len(self.held(index)) == len(set(self.held(index)))
            assert all(run.holders[index].run is run for run in held.runs())

    def _new(self, anchors: Sequence[int], place: int) -> Run:
        """A run of those from a place on that nobody holds."""
        runs, own = self._runs, tuple(anchors[place : place + MOST_TOGETHER])
        if not runs.keys().isdisjoint(own):
            own = tuple(takewhile(lambda one: one not in runs, own))
        run, before = Run(own), len(runs)
        for anchor in own:
            runs[anchor] = run
        if len(runs) < before + len(own):  # one of them comes twice: the first stands alone
            for anchor in {*own[1:]} - {own[0]}:
                del runs[anchor]
            run.anchors = own[:1]
        return run

    def _cut(self, run: Run, anchors: Sequence[int], place: int) -> Run:
        """The part of a run that begins with the anchor at a place, as far as both agree."""
        own = run.anchors
        if own == tuple(anchors[place : place + len(own)]):
            return run
        begin, count = own.index(anchors[place]), 1
        most = min(len(own) - begin, len(anchors) - place)
        while count < most and own[begin + count] == anchors[place + count]:
            count += 1
        if begin:
            run = self._split(run, begin)[1]
        return self._split(run, count)[0] if count < len(run.anchors) else run

    def _split(self, run: Run, count: int) -> tuple[Run, Run]:
        """The first `count` anchors of a run, and the others. What is more stays what it was."""
        new = run.split(count)
        self._runs.update(dict.fromkeys(new.anchors, new))
        return (run, new) if len(run.anchors) == count else (new, run)

    def _unlink(self, index: int, held: Held, run: Run) -> None:
        held.remove(run.holders.pop(index))
        if not run.holders:
            for anchor in run.anchors:
                del self._runs[anchor]
