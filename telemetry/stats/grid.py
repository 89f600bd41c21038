"""What the batch grid keeps of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from telemetry.stats.snapshot import Cell


@dataclass(slots=True)
class GridSequence:
    """A sequence in the batch grid."""

    seq_id: int
    request_id: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    queued_step: int = 0
    ended_step: int | None = None
    state: str = "waiting"
    cells: dict[int, Cell] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.ended_step is None
