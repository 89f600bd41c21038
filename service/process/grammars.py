"""Has the grammars of live sequences compiled, and gives up those of sequences that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from service.engine.inbox import Submit
from service.engine.loop import EngineLoop
from service.engine.plan import Emission, Grammar


class Compiler(Protocol):
    """The part of a `GrammarCompiler` that is about sequences."""

    def request(self, seq_id: int, grammar: Grammar) -> None: ...

    def ended(self, seq_id: int) -> None: ...


class Grammars:
    """Tells the compiler which sequences want a grammar, from their submission to their end."""

    def __init__(self, compiler: Compiler, loop: EngineLoop) -> None:
        self._compiler = compiler
        self._loop = loop
        self._wanting: set[int] = set()

    def compile(self, constrained: Sequence[Submit]) -> None:
        """Request the grammars of new sequences, but not for those that the queue refused."""
        if not constrained:
            return
        self._loop.apply_commands()
        for submit in constrained:
            if submit.seq_id in self._loop.scheduler.table.live:
                assert submit.grammar is not None
                self._wanting.add(submit.seq_id)
                self._compiler.request(submit.seq_id, submit.grammar)

    def after_step(self, emissions: Iterable[Emission]) -> None:
        """Every end of a sequence is among the emissions of an iteration."""
        if not self._wanting:
            return
        for emission in emissions:
            if emission.end is not None and emission.seq_id in self._wanting:
                self._wanting.remove(emission.seq_id)
                self._compiler.ended(emission.seq_id)
