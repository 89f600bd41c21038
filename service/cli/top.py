"""`phasescope top`: the live monitor of a running server."""

from __future__ import annotations

import argparse

from service.cli.source import add_debug_key


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("top", help="watch a server: batch, queue, cache, latencies")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument(
        "--interval", type=float, default=0.5, help="seconds between frames (default 0.5)"
    )
    parser.add_argument("--once", action="store_true", help="print one frame as text and exit")
    add_debug_key(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dashboards.monitor.app import print_once, watch
    from dashboards.monitor.client import Client
    from service.config.settings import ConfigError

    if args.interval < 0.1:
        raise ConfigError("--interval must be at least 0.1 s")
    client = Client(args.url, args.debug_key)
    if args.once:
        return print_once(client)
    return watch(client, args.interval)
