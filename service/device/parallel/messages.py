"""Messages between rank 0 and each other rank, beside the collectives.

Steps go to the ranks over a pipe and not as a collective: a rank may wait days for the next one
without a timeout, it sees the end of rank 0 as the end of the pipe, and the block tables arrive
where they are needed, on the host.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import torch

from service.config.settings import EngineConfig
from service.device.inputs import SequenceSpan, StepInputs


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a rank: what to load, and the file through which it finds the others."""

    config: EngineConfig
    rank: int
    device: str
    threads: int
    max_tokens: int
    rendezvous: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The rank has its part of the weights."""


class NotLoaded(msgspec.Struct, frozen=True, tag=True):
    """The rank ends; `is_config` when a setting is to blame."""

    message: str
    is_config: bool


class Met(msgspec.Struct, frozen=True, tag=True):
    """The rank has found all others."""


class MakePages(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Steps are run on so many pages from now on; those of before are free."""

    blocks: int


class PackedStep(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`numbers` are int64: ids, positions, slot mapping of `tokens` tokens, then sampled rows."""

    numbers: bytes
    tokens: int
    decodes: tuple[SequenceSpan, ...]
    prefills: tuple[SequenceSpan, ...]


Answer = Loaded | NotLoaded | Met
Order = MakePages | PackedStep
_encode = msgspec.msgpack.Encoder().encode
_join: msgspec.msgpack.Decoder[Join] = msgspec.msgpack.Decoder(Join)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_order: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)


def pack(message: Join | Answer | Order) -> bytes:
    return _encode(message)


def unpack_join(data: bytes) -> Join:
    return _join.decode(data)


def unpack_answer(data: bytes) -> Answer:
    return _answer.decode(data)


def unpack_order(data: bytes) -> Order:
    return _order.decode(data)


def pack_step(inputs: StepInputs) -> bytes:
    """All that a rank computes from; on a GPU this waits for the token ids."""
    numbers = torch.cat((inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.sampled))
    return pack(
        PackedStep(
            numbers.cpu().numpy().tobytes(), len(inputs.token_ids), inputs.decodes, inputs.prefills
        )
    )


def inputs_of(step: PackedStep, device: torch.device) -> StepInputs:
    """What `pack_step` was given, without the places of last tokens: they are filled in."""
    numbers = torch.frombuffer(bytearray(step.numbers), dtype=torch.int64).to(device)
    tokens = step.tokens
    sizes = (tokens, tokens, tokens, len(numbers) - 3 * tokens)
    token_ids, positions, slot_mapping, sampled = numbers.split_with_sizes(sizes)
    return StepInputs(token_ids, positions, slot_mapping, sampled, step.decodes, step.prefills)


def pack_times(times_ns: Sequence[int]) -> bytes:
    """How long the rank was in each all-reduce of the step."""
    return array("q", times_ns).tobytes()


def unpack_times(data: bytes) -> Sequence[int]:
    times_ns = array("q")
    times_ns.frombytes(data)
    return times_ns
