"""The messages between gateway and engine process, and their framing.

The messages are framed by `telemetry.facts.framing`, over one local stream socket. From gateway to
engine: one `Launch`, one `UseVocabulary`, then commands. From engine to gateway: `LoadProgress`
while it loads, then one `Frame` a step: the emitted tokens and the step's facts are the same
message, so no view can run ahead of another.
`PrefixesHeld` follows a frame where `WatchPrefixes` asked for it.
`ProfileEnded` answers a `StartProfile`. `EngineFailed` is the engine's last message when it fails.
"""

from __future__ import annotations

import msgspec

from service.config.fleet_settings import KvTransportName
from service.config.settings import EngineConfig
from service.engine.inbox import (
    Cancel,
    FlushCache,
    LoadAdapter,
    Pause,
    Resume,
    SetLimits,
    SetRecording,
    SetStepCost,
    Submit,
    UnloadAdapter,
)
from service.engine.plan import Emission
from service.engine.vocabulary import Vocabulary
from service.fleet.transfer.messages import TransferRequestContext
from telemetry.facts.framing import framed
from telemetry.facts.reasons import StepFailure
from telemetry.facts.records import Fact

EXIT_RANK_LOST = 3  # exit code of the engine process; 2 is an invalid configuration


class Launch(msgspec.Struct, frozen=True, tag=True):
    """The engine's configuration: the first message it reads. Its process was started at
    `begun_ns`."""

    config: EngineConfig
    begun_ns: int
    kv: KvLaunch | None = None


class KvLaunch(msgspec.Struct, frozen=True):
    """How the engine exchanges KV with others: `name` is its node's, `key` the fleet's. Others
    connect at `listen` (host, port; 0: any free one); None: none does. Blocks go by `transport`."""

    name: str
    key: bytes
    listen: tuple[str, int] | None
    transport: KvTransportName = "tcp"


class UseVocabulary(msgspec.Struct, frozen=True, tag=True):
    """The vocabulary that grammars are compiled for: the second message. The gateway sends it when
    it has loaded the tokenizer, which it does while the engine loads the weights."""

    vocabulary: Vocabulary


class PrefillElsewhere(msgspec.Struct, frozen=True, tag=True):
    """The prompt of the sequence that is submitted next is computed by the engine at `host` and
    `port`, which sends its KV; `about` is its request."""

    seq_id: int
    host: str
    port: int
    about: TransferRequestContext


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Exit now; no request waits for a sequence in flight."""


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message of a gateway process that is not the main one: `space` is the upper part of
    all its sequence ids (`telemetry.facts.base.space_of`)."""

    space: int


class WatchPrefixes(msgspec.Struct, frozen=True, tag=True):
    """Say from now on which of each `stride` blocks of a text the prefix cache holds: nodes of a
    fleet ask for it."""

    stride: int


class PrefixesHeld(msgspec.Struct, frozen=True, tag=True):
    """Digests of texts that the prefix cache came to hold and holds no more since the last message
    (`service.engine.kv.held_prefixes`); with `whole` what was said before counts no more."""

    whole: bool
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """A stage of loading has begun."""

    stage: str


class KvOffered(msgspec.Struct, frozen=True, tag=True):
    """Sent once, before the engine has started: it can receive KV of prompts, and compute prompts
    for others at `port` (None: it does not). Engines of one `layout` (a digest) can exchange blocks
    of `block_bytes`. `why` says in words why it exchanges none; then the layout is empty."""

    port: int | None
    layout: str
    block_bytes: int = 0
    why: str = ""


class Frame(msgspec.Struct, frozen=True, tag=True):
    """Emissions and facts of one step. `lost_facts` counts dropped facts since the start.

    To one of several gateway processes it has that process' emissions, and of the facts those that
    tell where sequences are; `number` is then how many frames the main process had been sent, which
    have all facts.
    """

    emissions: list[Emission]
    facts: list[Fact]
    lost_facts: int
    number: int = 0


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """Why the engine cannot start or go on; `message` is one line with the remedy.

    `is_config` means that settings or files are wrong, so a restart would fail too. `failure` is
    set when the device failed.
    """

    message: str
    is_config: bool
    failure: StepFailure | None = None


class StartProfile(msgspec.Struct, frozen=True, tag=True):
    """Profile the next `steps` steps with torch's profiler, into a new file `path`. The engine
    answers with one ProfileEnded; no other StartProfile may be sent before that."""

    steps: int
    path: str


class StopProfile(msgspec.Struct, frozen=True, tag=True):
    """End the running profile, if there is one, and write its file if `keep`."""

    keep: bool


class ProfileEnded(msgspec.Struct, frozen=True, tag=True):
    """The profile has `steps` steps. Its file was written if `keep` and `error` (one line) is None.
    `contents` describes in words what was recorded."""

    steps: int
    contents: str
    error: str | None = None


ToEngine = (
    Launch
    | UseVocabulary
    | PrefillElsewhere
    | Submit
    | Cancel
    | Pause
    | Resume
    | FlushCache
    | SetRecording
    | SetLimits
    | SetStepCost
    | LoadAdapter
    | UnloadAdapter
    | StartProfile
    | StopProfile
    | WatchPrefixes
    | Shutdown
)
FromGatewayProcess = Join | Submit | Cancel | Pause | Resume
ToGateway = LoadProgress | KvOffered | Frame | ProfileEnded | PrefixesHeld | EngineFailed

_encoder = msgspec.msgpack.Encoder()
to_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
from_process_decoder: msgspec.msgpack.Decoder[FromGatewayProcess] = msgspec.msgpack.Decoder(
    FromGatewayProcess
)
to_gateway_decoder: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def packed(message: ToEngine | ToGateway | Join) -> bytes:
    """A message without its length."""
    return _encoder.encode(message)


def encode(message: ToEngine | ToGateway | Join) -> bytes:
    """One framed message."""
    return framed(packed(message))
