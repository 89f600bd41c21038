"""Facts of a fleet's gateway: who serves, what engines reported, where requests were sent and why.

Written in the order in which the router took them, so that it can decide each choice again. All
stamps are the gateway's. An engine is named by its membership; its *incarnation* is drawn at each
of its starts.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.base import FactStruct as _Fact
from telemetry.facts.engine_records import EngineStarted, StepCostSet

ANCHOR_BLOCKS = 4
"""An anchor, the keyed hash of a prefix of a prompt, names so many blocks more than the one before
it."""


class RoutingPolicy(StrEnum):
    """How an engine is chosen for a request."""

    LEAST_FINISH = "least_finish"  # least predicted finish of it, and harm to the others there
    PREFIX_AFFINITY = "prefix_affinity"  # where its prefix was sent, up to a bound on load
    ROUND_ROBIN = "round_robin"  # one after the other


class LeaveReason(StrEnum):
    """Why an engine serves no more."""

    DIED = "died"  # its process ended, or its connection is lost
    REPLACED = "replaced"  # another incarnation has its name
    REMOVED = "removed"  # membership does not name it any more


class RouteRefusal(StrEnum):
    """Why no engine could be chosen."""

    NO_ENGINE = "no_engine"  # none has joined, or all have left
    ALL_DRAIN = "all_drain"  # each of them drains
    ALL_TRIED = "all_tried"  # each that may be chosen is one that the request excludes


class PrefixChanges(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which prefixes an engine came to hold, and no longer holds, since its message `number - 1`;
    with `whole` all that it holds. An anchor is a keyed hash of a prefix
    (`service.fleet.routing.anchors`)."""

    number: int
    whole: bool = False
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


class Candidate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An engine that was weighed: how old its last report was (None: there is none), how much of
    the prompt it is believed to hold, when the first token and the end would come, counted from the
    choice, and the time that the request would take from the others there, summed over them."""

    engine: str
    age_ns: int | None
    cached_tokens: int
    ttft_ns: int
    finish_ns: int
    harm_ns: int


class RouterStarted(_Fact, frozen=True):
    """A router begins with these settings (`service.fleet.routing.settings`)."""

    at_ns: int
    policy: RoutingPolicy
    seed: int
    harm_weight: float
    load_bound: float
    first_output_tokens: int
    late_apart_ns: int = 0


class EngineJoined(_Fact, frozen=True):
    """An engine may be chosen from now on. `block_tokens` are the tokens of one KV block. `started`
    is its own fact of its start, with its limits, in the clock of its node; `role` is what it is
    used for (`service.fleet.membership.members.Role`)."""

    at_ns: int
    engine: str
    incarnation: int
    block_tokens: int
    role: str = ""
    started: EngineStarted | None = None


class EngineDrainBegan(_Fact, frozen=True):
    """Membership said that this engine takes no more requests."""

    at_ns: int
    engine: str


class EngineLeft(_Fact, frozen=True):
    """An engine serves no more; `lost` requests that this router had sent it had not ended."""

    at_ns: int
    engine: str
    reason: LeaveReason
    lost: int


class EngineReported(_Fact, frozen=True):
    """The load of an engine, as of when it made its report `number`, which came at `at_ns`.

    It was `age_ns` old when it came, as far as that is known. It contains the first `received`
    requests of this router, and not those of them whose ends the engine had written it, which are
    `ended`: so what it cannot contain is known without comparing clocks. `prompt_tokens` are those
    still to be computed, of waiting and begun prompts; `context_tokens` are those that
    `decode_rows` attend to. `cost` is the fit that the engine uses; its last steps took `drift`
    times as long. `target_ns` bounds a step while others decode; None: its budget of
    `budget_tokens` does. Of the sequences `running` and `waiting`, `own_sequences` are this
    router's; None: it was not said. Of requests that went on it had written `choices_ended` ends
    of one sequence; None: it was not said, and it contains those that had come before it.
    """

    at_ns: int
    engine: str
    incarnation: int
    number: int
    age_ns: int
    received: int
    ended: int
    running: int
    waiting: int
    prompt_tokens: int
    decode_rows: int
    context_tokens: int
    blocks_used: int
    blocks_total: int
    max_seqs: int
    budget_tokens: int
    target_ns: int | None = None
    draining: bool = False
    drift: float = 1.0
    cost: StepCostSet | None = None
    prefixes: PrefixChanges | None = None
    own_sequences: int | None = None
    choices_ended: int | None = None


class RequestRouted(_Fact, frozen=True):
    """A request was sent to `engine`: the `ordinal`-th that this router sent it.

    What the choice was made from is all here and in the facts before it: `anchors` name prefixes of
    the prompt, shortest first; `excluded` engines were not to be chosen, None: those of the
    `RequestRouted` before. `candidates` are the engines that were weighed, the chosen one first, at
    most eight; `left_out` others might have been chosen. Its prompt is computed once, and
    `sequences` (choices) generate from it. Several `prompts` that are sent together, as inputs to
    embed, have one sequence each: `prompt_tokens` are then those of one of them in the mean, and
    `anchors` those of the first.
    """

    at_ns: int
    request_id: str
    engine: str
    incarnation: int
    ordinal: int
    prompt_tokens: int
    max_tokens: int
    itl_target_ns: int | None
    ttft_target_ns: int | None
    anchors: tuple[int, ...]
    excluded: tuple[str, ...] | None
    candidates: tuple[Candidate, ...]
    left_out: int
    sequences: int = 1
    prompts: int = 1


class RouteRefused(_Fact, frozen=True):
    """No engine could be chosen for a request, of `engines` that have joined."""

    at_ns: int
    request_id: str
    reason: RouteRefusal
    engines: int


class RouteChoiceEnded(_Fact, frozen=True):
    """The engine's end of one sequence (choice) of a request came, and the request goes on."""

    at_ns: int
    request_id: str


class RouteEnded(_Fact, frozen=True):
    """The engine's end of a request came, with so many tokens; None: the request is over without
    one, as after a failed connection."""

    at_ns: int
    request_id: str
    output_tokens: int | None
