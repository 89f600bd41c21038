"""`phasescope gateway`: one of several gateway processes; started by `serve`, not by people."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import socket


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "gateway", help="(internal) a gateway process; `serve --gateways` starts it"
    )
    parser.add_argument("--fd", type=int, required=True, help="socket inherited from the server")
    parser.add_argument("--listen-fd", type=int, required=True, help="where clients connect")
    parser.add_argument("--count-fd", type=int, required=True, help="shared count of facts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    gc.disable()  # until it has loaded: nothing that imports create is garbage
    faulthandler.enable(2)
    from service.cli.serve import print_line
    from service.composition.clients.gateway_process import run_gateway_process

    main, clients = socket.socket(fileno=args.fd), socket.socket(fileno=args.listen_fd)
    return run_gateway_process(main, clients, args.count_fd, print_line)
