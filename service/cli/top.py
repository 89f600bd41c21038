"""`phasescope top`: the live monitor of one running server, or of several."""

from __future__ import annotations

import argparse

from service.cli.source import DEFAULT_URL, add_debug_key


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("top", help="watch servers: batch, queue, cache, latencies")
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="URL",
        help=f"the server (default {DEFAULT_URL}); of several, one line each, and what they show "
        "together",
    )
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
    if len(args.urls) > 1:
        return _fleet(args)
    client = Client(args.urls[0] if args.urls else DEFAULT_URL, args.debug_key)
    if args.once:
        return print_once(client)
    return watch(client, args.interval)


def _fleet(args: argparse.Namespace) -> int:
    from dashboards.fleet.app import print_fleet_once, watch_fleet

    if args.once:
        return print_fleet_once(args.urls, args.debug_key)
    return watch_fleet(args.urls, args.debug_key, args.interval)
