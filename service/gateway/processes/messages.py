"""The messages between the main process and a gateway process, over one local stream socket."""

from __future__ import annotations

import msgspec

from service.config.settings import GatewayConfig, ModelRef
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, RequestEnded
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts
from telemetry.requests.slo_policy import SloPolicy


class LaunchGateway(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first message: what to serve and how. `space` is the upper part of the process' sequence
    ids, and its number in facts. The engine listens at `engine_path`, the main process answers
    operators at `main_path`."""

    space: int
    config: GatewayConfig
    model: ModelRef
    slo: SloPolicy
    engine_path: str
    main_path: str
    created_unix_s: int
    log_format: str
    watch_host: bool


class EngineHealthIs(msgspec.Struct, frozen=True, tag=True):
    """How the engine does (`service.gateway.server_state.Health`), and how long a refused client
    should wait."""

    hung_ns: int | None
    heartbeat_age_ns: int | None
    hangs: int
    retry_after_s: int
    given_up_pid: int = 0


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    """End a live request for `reason`."""

    request_id: str
    reason: EndReason


class Claimed(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Claim: whether no other live request has the id."""

    number: int
    granted: bool


class Sync(msgspec.Struct, frozen=True, tag=True):
    """Send all facts that there are now, then a Synced."""

    number: int


class TimingsAre(msgspec.Struct, frozen=True, tag=True):
    """The answer to AskTimings: MessagePack of the timings, None if they are not known."""

    number: int
    timings: bytes | None


class Drain(msgspec.Struct, frozen=True, tag=True):
    """The server is shutting down: refuse new requests."""


class StopGateway(msgspec.Struct, frozen=True, tag=True):
    """Exit, once clients have read their last responses."""


class GatewayReady(msgspec.Struct, frozen=True, tag=True):
    """The process has loaded the tokenizer and takes connections."""


class GatewayFailed(msgspec.Struct, frozen=True, tag=True):
    """Why it cannot start: one line, with the remedy."""

    message: str


class Facts(msgspec.Struct, frozen=True, tag=True):
    """New facts, in order. They were recorded after frame number `after_frame` of the engine with
    process id `engine_pid` had been read (0: before any). `lost` counts facts dropped since the
    start. Sent at least every `BEAT_S`, so that silence is a hang."""

    facts: list[Fact]
    lost: int
    engine_pid: int
    after_frame: int
    connections: ConnectionCounts
    ingest: IngestCounts


class Claim(msgspec.Struct, frozen=True, tag=True):
    """May a request have the id that its client sent?"""

    number: int
    request_id: str


class Release(msgspec.Struct, frozen=True, tag=True):
    """A claimed id is free again."""

    request_id: str


class AskTimings(msgspec.Struct, frozen=True, tag=True):
    """The timings of a live request if it ended with `ended`, as far as the facts before this
    message tell."""

    number: int
    ended: RequestEnded


class Synced(msgspec.Struct, frozen=True, tag=True):
    """The facts up to a Sync have been sent."""

    number: int


ToGatewayProcess = (
    LaunchGateway | EngineHealthIs | Interrupt | Claimed | Sync | TimingsAre | Drain | StopGateway
)
ToMain = GatewayReady | GatewayFailed | Facts | Claim | Release | AskTimings | Synced

BEAT_S = 0.25
"""How often a gateway process without news sends an empty `Facts`."""

_encoder = msgspec.msgpack.Encoder()
to_process_decoder: msgspec.msgpack.Decoder[ToGatewayProcess] = msgspec.msgpack.Decoder(
    ToGatewayProcess
)
to_main_decoder: msgspec.msgpack.Decoder[ToMain] = msgspec.msgpack.Decoder(ToMain)


def packed(message: ToGatewayProcess | ToMain) -> bytes:
    """A message without its length."""
    return _encoder.encode(message)
