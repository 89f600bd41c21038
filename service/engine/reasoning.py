"""Where one sequence is in its reasoning, from its own tokens alone.

    OPENING -- the begin marker as first output --> INSIDE -- the end marker --> OVER
       |                                                                          ^
       +---- any other token -----------------------------------------------------+

A prompt may end within the reasoning: then a sequence begins INSIDE. Because the place follows from
the outputs, a preempted sequence comes back to it by reading them again, an engine with drafts ends
the reasoning at the same token as one without, and the gateway sees what the sampler saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from service.engine.plan import Reasoning


class Place(Enum):
    """See the module."""

    OPENING = auto()
    INSIDE = auto()
    OVER = auto()


class ReasoningWatch:
    """Follows one sequence's outputs; says when the end marker is due.

    `tokens` are those inside, without the markers; `was_cut` says whether the budget ended them.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self._reasoning = reasoning
        self.tokens = 0
        self.was_cut = False
        self.place = Place.INSIDE if reasoning.is_open else Place.OPENING

    @property
    def begin_id(self) -> int:
        return self._reasoning.begin_id

    @property
    def forced_id(self) -> int | None:
        """The end marker where the budget is used up: nothing else may come."""
        budget = self._reasoning.budget_tokens
        if self.place is not Place.INSIDE or budget is None or self.tokens < budget:
            return None
        return self._reasoning.end_id

    def accept(self, token_id: int) -> bool:
        """Go on past an output; True if it belongs to the answer, which a grammar constrains."""
        if self.place is Place.OVER:
            return True
        if self.place is Place.OPENING:
            begins = token_id == self._reasoning.begin_id
            self.place = Place.INSIDE if begins else Place.OVER
            return not begins
        if token_id == self._reasoning.end_id:
            self.was_cut = self.forced_id is not None
            self.place = Place.OVER
        else:
            self.tokens += 1
        return False

    def replay(self, outputs: Sequence[int]) -> Sequence[int]:
        """Go on past everything that was generated before a preemption; returns the answer's."""
        for index, token_id in enumerate(outputs):
            if self.accept(token_id):
                return outputs[index:]
        return ()
