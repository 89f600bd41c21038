"""The views of a gateway process: it has no folds, and passes questions of operators on."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from service.gateway.server_state import Views
from telemetry.facts.records import RequestEnded
from telemetry.requests.timings import RequestTimings


class _OnlyTimings:
    """What a request that it serves asks for."""

    def __init__(self, timings: Callable[[RequestEnded], RequestTimings | None]) -> None:
        self.timings = timings


def only_timings(timings: Callable[[RequestEnded], RequestTimings | None]) -> Views:
    """Views of which the routes for clients use only `timings`; the others are not reached, since
    every other route is passed on."""
    return cast(Views, _OnlyTimings(timings))
