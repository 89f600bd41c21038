"""What gateways and nodes say to each other. Each message is MessagePack in one frame.

Sequence ids on the wire are the gateway's; a node numbers the sequences of all its gateways anew.
Stamps of a gateway and of a node are of two clocks; the names say whose they are. Deadlines travel
as time left.

A node has an `incarnation` of its engine, a random number that it draws at each start of one; 0:
none runs. A submit for another incarnation than the one that runs is refused: what its gateway
knew of the engine is not true any more.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.engine.inbox import Pause, Resume
from service.engine.plan import Emission, Grammar, SamplingParams
from service.engine.prompt_output import PromptOutput
from service.fleet.wire.handshake import NONCE_BYTES, PROOF_BYTES
from telemetry.facts.engine_records import EngineStarted, StepCostSet
from telemetry.facts.fleet.routing_records import PrefixChanges
from telemetry.facts.fleet.sequence_records import RemoteAccount
from telemetry.facts.reasons import EndReason

PROTOCOL = 2
FIRST_FRAME_BYTES = 1024
"""Most bytes of a frame of a peer that has proved nothing; it may send `FIRST_BYTES` in all."""
FIRST_BYTES = 4096
TO_NODE_BYTES = 16 * 1024 * 1024
"""A prompt of a million tokens, with a grammar."""
TO_GATEWAY_BYTES = 64 * 1024 * 1024
"""The scores of a long prompt, with 20 alternatives a token."""

_NAME = Annotated[str, msgspec.Meta(max_length=128)]
_LABEL = Annotated[str, msgspec.Meta(max_length=128)]
_NONCE = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_PROOF = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
_TRACE_ID = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_SPAN_ID = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_COUNT = Annotated[int, msgspec.Meta(ge=0)]
_TOKEN = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_PROMPT = Annotated[list[_TOKEN], msgspec.Meta(min_length=1, max_length=1 << 20)]


class _Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all."""


# Before the proof


class Challenge(_Message, frozen=True):
    """The first message, of the node."""

    protocol: int
    nonce: _NONCE


class Proof(_Message, frozen=True):
    """The gateway's answer; `gateway` is its name, for people."""

    protocol: int
    gateway: _NAME
    nonce: _NONCE
    proof: _PROOF


class Refused(_Message, frozen=True):
    """The node refuses the connection and closes it; `why` is one line with the remedy."""

    fault: _NAME
    why: Annotated[str, msgspec.Meta(max_length=512)]


class Welcome(_Message, frozen=True):
    """The gateway has proved that it has the key, and `proof` is the node's. `vocabulary` is the
    digest of the tokens that texts are made of there (`telemetry` never has it)."""

    proof: _PROOF
    name: _NAME
    model: Annotated[str, msgspec.Meta(max_length=512)]
    vocabulary: Annotated[str, msgspec.Meta(max_length=128)]


# From the gateway


class WireRequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's telemetry has of a sequence's request: the `choice`-th sequence of
    `choices`. The node's spans are children of `span_id`, the gateway's span."""

    request_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    trace_id: _TRACE_ID
    span_id: _SPAN_ID
    sampled: bool | None = None
    slo_class: _LABEL = ""
    route: Annotated[str, msgspec.Meta(max_length=64)] = ""
    operation: Annotated[str, msgspec.Meta(max_length=64)] = ""
    choice: _COUNT = 0
    choices: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1


class PrefillAt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt is computed by another engine, which is reached at `host` and `port` and sends its
    KV, and not by the one that generates. The rest is what both ways were predicted to take
    (`service.fleet.transfer.split`); with `is_remote` false it is computed here after all, and
    only that is said."""

    host: Annotated[str, msgspec.Meta(max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    is_remote: bool
    cached_tokens: _COUNT = 0
    remote_cached_tokens: _COUNT = 0
    local_ns: int = 0
    harm_ns: int = 0
    remote_ns: int = 0
    exposed_ns: int = 0


class RemoteSubmit(_Message, frozen=True):
    """`service.engine.inbox.Submit` for the engine `incarnation`; its deadlines in ns from now."""

    seq_id: _COUNT
    incarnation: int
    about: WireRequestContext
    prompt: _PROMPT
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    sampling: SamplingParams
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    end_token_ids: Annotated[tuple[_TOKEN, ...], msgspec.Meta(max_length=256)] = ()
    stop_token_ids: Annotated[frozenset[_TOKEN], msgspec.Meta(max_length=256)] = frozenset()
    tenant: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    deadline_in_ns: int | None = None
    cache_salt: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    cache_prefix: bool = True
    grammar: Grammar | None = None
    first_token_in_ns: int | None = None
    ttft_target_ns: int | None = None
    itl_target_ns: int | None = None
    prompt_output: PromptOutput | None = None
    prefill: PrefillAt | None = None


class RemoteCancel(_Message, frozen=True):
    """End a sequence. Its gateway had read `seen` of its emissions when its request ended: the
    account of the sequence ends with the last of these."""

    seq_id: _COUNT
    reason: EndReason
    seen: _COUNT


class Beat(_Message, frozen=True):
    """A sign of life, sent at `gateway_sent_ns`; the node answers at once."""

    number: _COUNT
    gateway_sent_ns: int


# From the node


class KvOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The engine exchanges KV with others of the same `layout`; `port`: and computes prompts for
    those that connect there. A token of the cache has `token_bytes`."""

    layout: Annotated[str, msgspec.Meta(max_length=64)]
    token_bytes: _COUNT
    role: Annotated[str, msgspec.Meta(max_length=32)] = "any"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None


class EngineIs(_Message, frozen=True):
    """What the node's engine is now. `ready`: it takes sequences; `why` says in words why not."""

    incarnation: int
    started: EngineStarted | None
    ready: bool
    draining: bool = False
    why: Annotated[str, msgspec.Meta(max_length=512)] = ""
    kv: KvOffer | None = None


class Queued(msgspec.Struct, frozen=True, array_like=True):
    """The engine has a sequence in its queue, behind `waiting_before` others. With `constrained` it
    waits for its grammar first."""

    seq_id: int
    waiting_before: int
    constrained: bool


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """A sequence came into the batch for the first time; `hit_tokens` of its prompt were cached.
    That was `waited_ns` after its submit was read, by the node's clock: the news comes with the end
    of the step that it came into. None: a node of an earlier release. The KV of `received_tokens`
    came from another engine."""

    seq_id: int
    known_tokens: int
    hit_tokens: int
    ghost_tokens: int
    waited_ns: Annotated[int, msgspec.Meta(ge=0)] | None = None
    received_tokens: _COUNT = 0


class Compiled(msgspec.Struct, frozen=True, array_like=True):
    """A sequence's grammar was compiled, or refused."""

    seq_id: int
    compile_ns: int
    cached: bool
    refused: bool


class Emitted(_Message, frozen=True):
    """What came of some sequences: first where they are, then their tokens and ends."""

    emissions: list[Emission]
    queued: list[Queued] = []
    compiled: list[Compiled] = []
    admitted: list[Admitted] = []


class Accounted(_Message, frozen=True):
    """The account of a sequence that has ended, up to the emission number `emissions`, from 1, that
    its gateway was sent; None: the node could not draw one up."""

    seq_id: int
    emissions: int
    account: RemoteAccount | None


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of an engine, the same whoever asks. Its last steps took `drift` times what `cost`
    predicts."""

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    decode_rows: int = 0
    context_tokens: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    max_seqs: int = 0
    budget_tokens: int = 0
    target_ns: int | None = None
    cost: StepCostSet | None = None
    drift: float = 1.0


class LoadReport(_Message, frozen=True):
    """What the engine has to do, as of `node_ns`: the `number`-th report to this gateway.

    By then the node had read the first `received` requests of this gateway, and written it the ends
    of `ended` of them. `prompt_tokens` are those still to be computed, of waiting and begun
    prompts; `context_tokens` are those that `decode_rows` attend to. `cost` is the fit in use, None
    before the first. `target_ns` is the latency target that bounds steps with prompts, None where
    `budget_tokens` does. `prefixes` are what the engine came to hold and to hold no more since the
    last report that had any; None: nothing, or a node of an earlier release. `own_sequences` of
    those in `load` are this gateway's. Of requests that go on, `choices_ended` ends of one sequence
    were written (`OpenRequests`). None in either: a node of an earlier release."""

    number: int
    incarnation: int
    node_ns: int
    received: int
    ended: int
    load: EngineLoad
    prefixes: PrefixChanges | None = None
    own_sequences: int | None = None
    choices_ended: int | None = None


class KvRates(_Message, frozen=True):
    """How fast the engine's KV has gone to others and was compared with digests; None: not known
    yet."""

    bytes_per_ns: float | None
    digest_byte_ns: float | None


class BeatAnswer(_Message, frozen=True):
    """The beat came at `node_received_ns`, and this left at `node_sent_ns`."""

    number: int
    gateway_sent_ns: int
    node_received_ns: int
    node_sent_ns: int


class Goodbye(_Message, frozen=True):
    """This end closes the connection, for the reason `why`."""

    why: Annotated[str, msgspec.Meta(max_length=512)]


FirstToNode = Proof
FirstToGateway = Challenge | Welcome | Refused
ToNode = RemoteSubmit | RemoteCancel | Pause | Resume | Beat | Goodbye
ToGateway = EngineIs | Emitted | Accounted | LoadReport | KvRates | BeatAnswer | Goodbye

first_to_node: msgspec.msgpack.Decoder[Proof] = msgspec.msgpack.Decoder(Proof)
first_to_gateway: msgspec.msgpack.Decoder[FirstToGateway] = msgspec.msgpack.Decoder(FirstToGateway)
to_node: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)
to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
_encoder = msgspec.msgpack.Encoder()

Any = FirstToNode | FirstToGateway | ToNode | ToGateway


def packed(message: Any) -> bytes:
    """A message without its length and seal."""
    return _encoder.encode(message)
