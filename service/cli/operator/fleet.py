"""`phasescope fleet`: a fleet on a cluster of Ray."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib.util import find_spec

from service.cli.settings_flags import add_settings
from service.config.setting import ConfigError, Setting
from service.config.tree import all_settings, node_settings
from service.fleet.ray_serve.plan import OF_ENGINES, OF_GATEWAYS, Plan, check_given, read_plan
from service.fleet.wire.key_file import KeyFileError, read_key


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fleet",
        help="run a fleet on a cluster of Ray",
        description="Gateways and engine nodes as deployments of Ray Serve, which places them, "
        "asks for their health and starts them again. No request and no token goes through Ray.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    deploy = actions.add_parser(
        "deploy", help="start the fleet of a file, or change the running one to it"
    )
    deploy.add_argument("plan", metavar="FILE", help="TOML file of gateways and engines")
    stop = actions.add_parser("stop", help="drain the fleet and end it; Ray goes on")
    for action, run in ((deploy, _deploy), (stop, _stop)):
        action.add_argument(
            "--address",
            default="auto",
            help="of the cluster of Ray (default: the one that runs on this machine)",
        )
        action.set_defaults(run=run)


def _deploy(args: argparse.Namespace) -> int:
    plan = read_plan(args.plan)
    _check(plan)
    _require_ray()
    from service.fleet.ray_serve.app import deploy

    deploy(plan, args.address)
    print(
        f"the fleet runs: gateways answer at port {plan.gateways.port} of the machines that have "
        "one, and GET /debug/engines there says which engines they have"
    )
    return 0


def _stop(args: argparse.Namespace) -> int:
    _require_ray()
    from service.fleet.ray_serve.app import stop

    stop(args.address)
    print("the fleet has stopped")
    return 0


def _require_ray() -> None:
    """Raises ConfigError where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("a fleet on Ray Serve needs ray: pip install 'phasescope[fleet]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported


def _check(plan: Plan) -> None:
    """What can be known here of a plan, before anything starts. Raises ConfigError."""
    try:
        read_key(plan.key_file)
    except KeyFileError as error:
        raise ConfigError(f"key_file {error}") from error
    _check_flags("gateways", plan.gateways.flags, all_settings(), OF_GATEWAYS)
    for name, group in plan.engines.items():
        _check_flags(f"engines.{name}", group.flags, node_settings(), OF_ENGINES)


def _check_flags(
    where: str, flags: tuple[str, ...], settings: Mapping[str, Setting], fixed: frozenset[str]
) -> None:
    parser = argparse.ArgumentParser(prog=f"flags of [{where}]", add_help=False)
    add_settings(parser, settings)
    check_given(where, set(parser.parse_args(list(flags)).given), fixed)
