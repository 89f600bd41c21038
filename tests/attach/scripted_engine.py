"""An engine whose processes send recorded facts: the streams of its core and its front end, as the
adapters would cut a simulated run."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from msgspec.structs import replace

from service.attach.wire import (
    PROTOCOL,
    Batch,
    Hello,
    Message,
    Role,
    SequenceName,
    Submitted,
    encode,
)
from telemetry.facts.engine_records import EngineStarted, SequenceQueued, SequenceRefused
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)

OF_FRONT = (RequestAccepted, RequestParsed, RequestTokenized, RequestEnded, RequestsListed)


def name_of(seq_id: int) -> str:
    return f"cmpl-{seq_id}-0-abcd"


def hello(role: Role = Role.ENGINE_CORE, pid: int = 1000, index: int = 0, at_ns: int = 0) -> Hello:
    return Hello(PROTOCOL, role, "vllm", "0.32.0", "0.1.0", pid, index, at_ns)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that is sent at `at_ns`, when its last fact has happened."""

    at_ns: int
    role: Role
    batch: Batch


def streams_of(facts: Sequence[Fact], random: Random) -> list[Sent]:
    """The batches of both processes, each some tens of milliseconds of facts, in sending order."""
    core = [fact for fact in facts if not isinstance(fact, (*OF_FRONT, SequenceSubmitted))]
    front = [fact for fact in facts if isinstance(fact, (*OF_FRONT, SequenceSubmitted))]
    sent = [*_batches(core, Role.ENGINE_CORE, random), *_batches(front, Role.FRONT_END, random)]
    return sorted(sent, key=lambda one: one.at_ns)


def _batches(facts: Sequence[Fact], role: Role, random: Random) -> Iterable[Sent]:
    part: list[Fact] = []
    until_ns: int | None = None
    for fact in facts:
        at_ns = fact_ns(fact)
        if until_ns is not None and at_ns > until_ns:
            yield _sent(part, role, until_ns)
            part, until_ns = [], None
        if until_ns is None:
            until_ns = at_ns + random.randrange(60_000_000)
        part.append(fact)
    if part and until_ns is not None:
        yield _sent(part, role, until_ns)


def _sent(facts: Sequence[Fact], role: Role, at_ns: int) -> Sent:
    new = [one for one in facts if isinstance(one, SequenceQueued | SequenceRefused)]
    return Sent(
        at_ns,
        role,
        Batch(
            facts=[one for one in facts if not isinstance(one, SequenceSubmitted)],
            names=[SequenceName(one.seq_id, name_of(one.seq_id)) for one in new],
            submitted=[
                Submitted(one.request_id, one.at_ns, name_of(one.seq_id), one.choice)
                for one in facts
                if isinstance(one, SequenceSubmitted)
            ],
        ),
    )


def started(at_ns: int = 0, pid: int = 1000) -> EngineStarted:
    return EngineStarted(
        at_ns=at_ns, pid=pid, model="m", backend="cpu", dtype="bf16", blocks_total=64,
        block_tokens=16, max_model_tokens=1024, max_seqs=8, budget_tokens=256,
        chunked_prefill=True, pipeline_depth=2, queue_limit_requests=0, queue_limit_tokens=0,
        engine="vllm", engine_version="0.32.0", settings={"max_num_seqs": "8"},
        unobserved=("sampling",),
    )  # fmt: skip


def shifted(fact: Fact, by_ns: int) -> Fact:
    """The fact with all its stamps later by `by_ns`."""
    return replace(
        fact,
        **{
            name: value + by_ns
            for name in fact.__struct_fields__
            if (name.endswith("_ns") and isinstance(value := getattr(fact, name), int))
            and name in ("at_ns", "begin_ns", "planned_ns", "launched_ns", "forward_ns",
                         "sample_ns", "collected_ns", "committed_ns", "read_ns", "received_ns",
                         "first_sent_ns", "detokenized_ns")
        },
    )  # fmt: skip


class Adapter:
    """One connection to a real sidecar."""

    def __init__(self, path: Path, first: Hello) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._socket.settimeout(20)
        self.send(first)

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def is_closed(self) -> bool:
        """Wait for the sidecar to close; the timeout says that it did not."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()
