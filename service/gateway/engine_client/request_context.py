"""What an engine elsewhere is told of a request, for its own telemetry."""

from __future__ import annotations

from typing import NamedTuple


class RequestContext(NamedTuple):
    """A request, as an engine elsewhere records it. `sequence` counts its `sequences` from 0. They
    share a prompt; or each has its own, of `own_prompt_tokens` in the mean."""

    request_id: str
    trace_id: str
    span_id: str
    sampled: bool | None
    slo_class: str
    route: str
    operation: str
    sequence: int
    sequences: int
    own_prompt_tokens: int = 0
