"""The application of Ray Serve: a deployment of gateways, one for each group of engines, and one
replica that keeps the roll."""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from service.config.fleet_settings import address_of
from service.config.setting import ConfigError
from service.fleet.ray_serve.plan import Engines, Gateways, Plan
from service.fleet.ray_serve.replicas import (
    LAST_S,
    LEAVING_S,
    ROLL,
    EngineReplica,
    GatewayReplica,
    HeartbeatRegistryReplica,
)
from telemetry.facts.version import installed_version

APP = "phasescope"
_HEALTH_PERIOD_S = 2.0
_HEALTH_TIMEOUT_S = 15.0
_STARTS = 3
"""How often a replica is started before the deployment counts as failed."""
_MARGIN_S = 10.0
_CONNECT_S = 5.0
_START_RAY = "RAY_USAGE_STATS_ENABLED=0 ray start --head --include-dashboard=false"


def deploy(plan: Plan, address: str) -> None:
    """Start the fleet, or change the running one to it: replicas whose commands stay as they are
    go on. Returns when all run. Raises ConfigError."""
    try:
        with _connected(address):
            serve.start(proxy_location="Disabled")
            serve.run(application(plan), name=APP, route_prefix=None)
    except RuntimeError as error:
        what = str(error).partition("\n")[0]
        raise ConfigError(
            f"Ray Serve could not start the fleet: {what} The lines above say why; what runs stays "
            "until you deploy again, or `phasescope fleet stop`"
        ) from error


def stop(address: str) -> None:
    """Drain the fleet, end it, and Serve if nothing else is on it. Raises ConfigError."""
    with _connected(address):
        try:
            while not _is_deleted():
                pass
        except RayServeException:
            return  # Serve does not run
        if not serve.status().applications:
            serve.shutdown()


def _is_deleted() -> bool:
    """False after a minute, in which Ray may not have ended a long drain. Raises
    RayServeException."""
    with contextlib.suppress(TimeoutError):
        serve.delete(APP)
        return True
    return False


def application(plan: Plan) -> Any:
    """All deployments. Each gets only what its own processes need: then one whose part of the plan
    has not changed has the version that it had, and goes on."""
    last_s = plan.drain_timeout_s + LAST_S + _MARGIN_S
    parts = [_gateways(plan, last_s)]
    parts += [_engines(plan, name, of, LEAVING_S + last_s) for name, of in plan.engines.items()]
    keeper = _deployment(
        HeartbeatRegistryReplica, ROLL, "1", num_replicas=1, ray_actor_options={"num_cpus": 0}
    )
    return keeper.bind(*parts)


def _gateways(plan: Plan, last_s: float) -> Any:
    of = plan.gateways
    part = msgspec.structs.replace(plan, engines={}, gateways=msgspec.structs.replace(of, number=1))
    text = msgspec.json.encode(part).decode()
    made = _deployment(
        GatewayReplica,
        "gateways",
        text,
        num_replicas=of.number,
        max_replicas_per_node=1,
        max_surge_percent=0,  # the one before has the port
        graceful_shutdown_timeout_s=last_s,
        ray_actor_options={"num_cpus": of.num_cpus},
    )
    return made.bind(text)


def _engines(plan: Plan, name: str, of: Engines, last_s: float) -> Any:
    alone = {name: msgspec.structs.replace(of, number=1)}
    part = msgspec.structs.replace(plan, engines=alone, gateways=Gateways())
    text = msgspec.json.encode(part).decode()
    limit = {"max_replicas_per_node": 1} if of.port else {}
    made = _deployment(
        EngineReplica,
        f"engines-{name}",
        text,
        num_replicas=of.number,
        graceful_shutdown_timeout_s=last_s,
        ray_actor_options={"num_cpus": of.num_cpus, "num_gpus": of.num_gpus},
        **limit,
    )
    return made.bind(text, name)


def _deployment(replica: type, name: str, text: str, **options: Any) -> Any:
    """One deployment, whose version is that of this program and `text`. Without one `serve.run`
    draws another each time, and so starts everything again; a config file of Serve gives one, as
    is done here."""
    made = serve.deployment(
        name=name,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        max_constructor_retry_count=_STARTS,
        logging_config={"enable_access_log": False},
        **options,
    )(replica)
    version = hashlib.sha256(f"{installed_version()} {text}".encode()).hexdigest()[:16]
    return made.options(version=version, _internal=True)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """Afterwards no line of the replicas' logs comes any more. Raises ConfigError."""
    try:
        if ":" in address:  # to an address where nothing listens Ray holds on for minutes
            host, port = address_of(address, "--address")
            socket.create_connection((host, port), _CONNECT_S).close()
        ray.init(address=address)
    except (OSError, RuntimeError) as error:  # ConnectionError; another version, another token
        raise ConfigError(
            f"no Ray answers at {address!r}; start it with `{_START_RAY}`: {error}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
