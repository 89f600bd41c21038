"""The process of vLLM's scheduler: `python -m lab.vllm_replay.worker`, in vLLM's Python.

It reads calls from its standard input and writes answers to its standard output, until that
ends. What vLLM prints goes to the standard error.
"""

from __future__ import annotations

import os
import sys

import msgspec

from lab.vllm_replay.protocol import Answer, Call, read_body, write_message
from lab.vllm_replay.stand_in import StandIn

_MOST_CHARACTERS = 300


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls = sys.stdin.buffer
    decoder = msgspec.msgpack.Decoder(Call)
    stand_in = StandIn()
    while (body := read_body(calls)) is not None:
        try:
            replies = [stand_in.do(command) for command in decoder.decode(body).commands]
        except Exception as error:  # the replay says it to its user, and ends this process
            said = f"{type(error).__name__}: {error}".splitlines() or ["?"]
            write_message(answers, Answer(error=said[0][:_MOST_CHARACTERS]))
            continue
        write_message(answers, Answer(replies, stand_in.has_requests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
