"""`phasescope engine`: an engine node, whose sequences come from gateways over the network."""

from __future__ import annotations

import argparse
import logging

import msgspec

from service.cli.extras import require_serve, require_transport
from service.cli.serve import EXIT_CONFIG, find_model, print_line
from service.cli.settings_flags import add_settings, checked_node, resolved_node
from service.config.settings import ConfigError
from service.config.tree import node_settings

log = logging.getLogger("phasescope.serve")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "engine",
        help="run an engine that gateways use over the network",
        description="Runs one engine with everything that `serve` has except the API that "
        "generates: /metrics, /debug, traces, the flight recorder, the diagnosis. Gateways "
        "(`serve --engines FILE`) connect at --listen, prove that they have the key in --key-file, "
        "and send sequences.",
    )
    add_settings(parser, node_settings())
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.composition.logs import set_up_logging
    from service.composition.node.startup import run_node

    require_serve()
    resolution = resolved_node(args)
    config = checked_node(resolution)
    require_transport(config.node.kv_transport)
    say = set_up_logging(config.logs.format, print_line)
    try:
        model = find_model(resolution, config.recorder, say)
        engine = msgspec.structs.replace(config.engine, model=model)
        return run_node(msgspec.structs.replace(config, engine=engine), say)
    except ConfigError as error:
        if config.logs.format == "text":
            raise
        log.critical("%s", error)
        return EXIT_CONFIG
