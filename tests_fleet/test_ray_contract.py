"""What of Ray's API the fleet relies on: a new version that changes it fails here first."""

from __future__ import annotations

import json
import subprocess

from tests_fleet.environments import environment, variables

PROGRAM = """
import inspect, json, ray, ray.util
from ray import serve
from ray.serve.context import ReplicaContext
from ray.serve.deployment import Deployment
from ray.serve.exceptions import RayServeException
names = lambda one: list(inspect.signature(one).parameters)
print(json.dumps({
    "version": ray.__version__,
    "deployment": names(serve.deployment), "options": names(Deployment.options),
    "bind": names(Deployment.bind), "run": names(serve.run), "start": names(serve.start),
    "delete": names(serve.delete), "handle": names(serve.get_deployment_handle),
    "shutdown": names(serve.shutdown), "status": names(serve.status), "init": names(ray.init),
    "context": [*inspect.get_annotations(ReplicaContext)],
    "machine": ray.util.get_node_ip_address(),
    "usage": __import__("ray._common.usage.usage_lib", fromlist=["x"]).usage_stats_enabled(),
}))
"""


def test_its_functions_take_what_the_fleet_gives_them() -> None:
    done = subprocess.run(
        [str(environment() / "bin" / "python"), "-c", PROGRAM],
        env=variables(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["version"] == "2.60.0"
    assert set(found["deployment"]) >= {
        "name", "num_replicas", "ray_actor_options", "max_replicas_per_node", "max_surge_percent",
        "graceful_shutdown_timeout_s", "health_check_period_s", "health_check_timeout_s",
        "max_constructor_retry_count", "logging_config",
    }  # fmt: skip
    assert {"version", "_internal"} <= set(found["options"])
    assert found["bind"] == ["self", "args", "kwargs"]
    assert {"target", "name", "route_prefix"} <= set(found["run"])
    assert "proxy_location" in found["start"]
    assert found["delete"][0] == "name"
    assert found["handle"][:2] == ["deployment_name", "app_name"]
    assert found["shutdown"] == found["status"] == []
    assert isinstance(found["machine"], str)
    assert found["init"][0] == "address"
    assert "replica_id" in found["context"]
    assert found["usage"] is False
