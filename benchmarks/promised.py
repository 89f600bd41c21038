"""What a measured server promises to its clients, and whether a request got it."""

from __future__ import annotations

import msgspec

from lab.drills.client import Sent
from telemetry.stats.slo import allowed_late


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """A first token, and 99 of 100 gaps of a request, within these times; for `objective` of the
    requests."""

    ttft_ms: float
    itl_ms: float
    objective: float

    def is_met_by(self, one: Sent) -> bool:
        """Whether a request met its targets, by the client's stamps."""
        if not one.is_good or one.ttft_ns is None or one.ttft_ns > self.ttft_ms * 1e6:
            return False
        late = sum(gap_us > self.itl_ms * 1e3 for gap_us in one.gaps_us)
        return late <= allowed_late(len(one.gaps_us))

    def as_class(self, name: str) -> str:
        """The class's table in an SLO file."""
        numbers = {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "objective": self.objective}
        lines = (f"{key} = {value:g}" for key, value in numbers.items())
        return "\n".join([f"[classes.{name}]", *lines, ""])

    def as_toml(self) -> str:
        """An SLO file with this class alone."""
        return f'default = "chat"\n\n{self.as_class("chat")}'
