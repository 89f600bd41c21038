"""`phasescope engine-process`: the engine process; started by the gateway, not by people."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import socket

from service.process.heartbeat import STACKS_SIGNAL


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "engine-process", help="(internal) the engine process; `serve` and `engine` start it"
    )
    parser.add_argument("--fd", type=int, required=True, help="socket inherited from the gateway")
    parser.add_argument("--pulse-fd", type=int, help="shared memory for the heartbeat")
    parser.add_argument("--stacks-fd", type=int, help="where stacks go when a signal asks for them")
    parser.add_argument("--listen-fd", type=int, help="where further gateway processes connect")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    gc.disable()  # until the engine has loaded: nothing that imports create is garbage
    faulthandler.enable(2)  # a crash in native code leaves the stack on stderr
    if args.stacks_fd is not None:  # written by C code, whatever holds the interpreter lock
        faulthandler.register(STACKS_SIGNAL, args.stacks_fd, all_threads=True)
    # torch takes seconds to import, and only this process needs it
    from service.process.engine_main import run_engine_process

    listener = None if args.listen_fd is None else socket.socket(fileno=args.listen_fd)
    return run_engine_process(socket.socket(fileno=args.fd), args.pulse_fd, listener)
