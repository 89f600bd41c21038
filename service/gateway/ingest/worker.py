"""A process that reads bodies and judges texts, one at a time, for as long as its socket is open.

It exists because the work is as large as a client likes: here it holds up nobody's stream, it
may be killed in the middle, and it may not take more than its share of memory. It ignores
signals to the gateway's group: the gateway decides when it ends.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys

from service.gateway.ingest.formats import outputs_are_valid
from service.gateway.ingest.frames import (
    Judge,
    ReadBody,
    Ready,
    Start,
    Verdict,
    head_of,
    receive_job,
    send,
)
from service.gateway.ingest.prompting import BodyReader
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock

_NICE = 5  # streams and steps go before prompts that are still to be read
_MOST_BYTES = 4 << 30  # of address space


def main() -> int:
    """Serve the socket whose number is the only argument."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_BYTES if hard == resource.RLIM_INFINITY else min(_MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection)
    return 0


def _serve(connection: socket.socket) -> None:
    reader: BodyReader | None = None
    while (found := receive_job(connection)) is not None:
        job, blobs = found
        match job:
            case Start():
                tokenizer = load_tokenizer(job.model)
                clock = MonotonicClock()
                reader = BodyReader(tokenizer, job.model.name, job.model.defaults, clock)
                send(connection, Ready(), [])
            case ReadBody():
                assert reader is not None, "a body before Start"
                reading = reader.read(job.operation, bytes(blobs.pop()), job.context_tokens)
                send(connection, *head_of(reading))
            case Judge():
                send(connection, Verdict(outputs_are_valid(job.grammar, job.texts)), [])


if __name__ == "__main__":
    sys.exit(main())
