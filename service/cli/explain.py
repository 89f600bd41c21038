"""`phasescope explain ID`: where one request's time went, to the nanosecond, and who took it."""

from __future__ import annotations

import argparse

from service.cli.say import complain
from service.cli.source import add_debug_key


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("explain", help="where one request's time went, and who took it")
    parser.add_argument("request_id", help="the x-request-id of its response")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    add_debug_key(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.explain import render
    from dashboards.monitor.client import Client, Unreachable
    from dashboards.terminal import Plain, terminal

    try:
        explained = Client(args.url, args.debug_key).explained(args.request_id)
    except Unreachable as error:
        complain(error)
        return 1
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(explained)).decode())
    else:
        terminal().print(Plain(render(explained)))
    return 0
