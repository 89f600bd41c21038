"""What a router is asked."""

from __future__ import annotations

import msgspec

from telemetry.facts.fleet.routing_records import RequestRouted


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request to be sent somewhere. `anchors` name prefixes of its prompt, shortest first
    (`anchors.anchors_of`), none if it may not share. Engines in `excluded` are not to be chosen,
    None: those of the request that was sent last. `sequences` generate from the prompt; of several
    `prompts`, with `prompt_tokens` each in the mean, each has a sequence of its own."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    anchors: tuple[int, ...] = ()
    itl_target_ns: int | None = None
    ttft_target_ns: int | None = None
    excluded: tuple[str, ...] | None = ()
    sequences: int = 1
    prompts: int = 1


def request_of(fact: RequestRouted) -> RouteRequest:
    """The question that a recorded choice answered."""
    return RouteRequest(
        request_id=fact.request_id,
        prompt_tokens=fact.prompt_tokens,
        max_tokens=fact.max_tokens,
        anchors=fact.anchors,
        itl_target_ns=fact.itl_target_ns,
        ttft_target_ns=fact.ttft_target_ns,
        excluded=fact.excluded,
        sequences=fact.sequences,
        prompts=fact.prompts,
    )
