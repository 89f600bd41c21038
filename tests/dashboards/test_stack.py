"""What the files of the stack name is there: paths, ports, routes, flags, data sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.stack import prometheus_rule
from service.config.settings import GatewayConfig
from service.gateway.routes.route_table import DESCRIPTIONS
from telemetry.metrics import prometheus_protobuf
from tests.diagnosis.test_runbooks import options, parsers
from tests.support.servers.prometheus_server import RULES

ROOT = Path(__file__).parents[2]
STACK = ROOT / "dashboards/stack"
DOCKERFILE = (STACK / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((STACK / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PORT = 8000
ROUTES = {one.path for one in DESCRIPTIONS}


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((STACK / "kubernetes" / name).read_text()))


def provisioned(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((STACK / "grafana" / name).read_text())
    return found


def container() -> dict[str, Any]:
    (statefulset,) = manifests("statefulset.yaml")
    (found,) = statefulset["spec"]["template"]["spec"]["containers"]
    return dict(found)


def served(words: list[str]) -> Any:
    """The command line of a container, read by the product's own parser."""
    assert words[0] == "serve"
    assert {word for word in words if word.startswith("--")} <= options("serve")
    return parsers()["serve"].parse_args(words[1:])


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted where, host paths and volumes alike."""
    found = {}
    for volume in service.get("volumes", ()):
        source, target = volume.removesuffix(":ro").split(":")
        found[target] = source
    return found


@pytest.mark.parametrize(
    "words",
    [SERVICES["phasescope"]["command"], container()["args"]],
    ids=["compose", "kubernetes"],
)
def test_the_server_is_started_with_flags_that_it_has(words: list[str]) -> None:
    """And listens where others look for it."""
    given = served(words).given

    assert given["port"] == PORT
    assert given["host"] == "0.0.0.0"


def test_the_image_builds_from_what_is_there_and_runs_as_nobody() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    sources = [path for paths in copied for path in paths if not path.startswith(("--", "/"))]
    assert sources
    ignored = (STACK / "Dockerfile.dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source

    user = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    (statefulset,) = manifests("statefulset.yaml")
    context = statefulset["spec"]["template"]["spec"]["securityContext"]
    assert user == [str(context["runAsUser"])]
    assert context["runAsNonRoot"]
    installs = re.findall(r"pip install .*", DOCKERFILE)
    assert installs
    assert all("-c constraints.txt" in line for line in installs)
    assert f'--port", "{PORT}"' in DOCKERFILE


def test_everything_that_is_written_lies_in_the_volume() -> None:
    """Models, the compiled executor and dumps are below XDG_CACHE_HOME."""
    (cache,) = re.findall(r"XDG_CACHE_HOME=(\S+)", DOCKERFILE)

    assert f"VOLUME {cache}" in DOCKERFILE
    assert mounts(SERVICES["phasescope"])[cache] in COMPOSE["volumes"]
    assert cache in {mount["mountPath"] for mount in container()["volumeMounts"]}


def test_probes_ask_routes_that_there_are() -> None:
    """Whether to restart hangs on /health; whether to send requests, on /ready."""
    probes = {
        name: container()[f"{name}Probe"]["httpGet"]
        for name in ("startup", "liveness", "readiness")
    }

    assert all(probe["path"] in ROUTES for probe in probes.values())
    assert [probe["path"] for probe in probes.values()] == ["/ready", "/health", "/ready"]
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert container()["ports"] == [{"name": "http", "containerPort": PORT}]
    (asked,) = re.findall(r"urlopen\('http://127\.0\.0\.1:(\d+)(/\w+)'", DOCKERFILE)
    assert asked == (str(PORT), "/ready")


def test_a_server_that_is_stopped_has_time_to_drain() -> None:
    drain_s = GatewayConfig().drain_timeout_s
    (statefulset,) = manifests("statefulset.yaml")

    assert statefulset["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > drain_s
    assert int(SERVICES["phasescope"]["stop_grace_period"].removesuffix("s")) > drain_s


def test_paths_that_compose_mounts_are_there() -> None:
    """All but the site, which `make docs` builds."""
    for service in SERVICES.values():
        for source in mounts(service).values():
            if source.startswith("."):
                path = (STACK / source).resolve()
                assert path.exists() or path == ROOT / "build/site", source
            else:
                assert source in COMPOSE["volumes"], source
    build = SERVICES["phasescope"]["build"]
    assert (STACK / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(STACK / "Dockerfile")


def test_ports_are_open_to_this_machine_only() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


def test_prometheus_scrapes_the_server_loads_all_rules_and_tells_alertmanager() -> None:
    config = yaml.safe_load((STACK / "prometheus.yml").read_text())
    mounted = {Path(path).name: source for path, source in mounts(SERVICES["prometheus"]).items()}

    (job,) = config["scrape_configs"]
    assert job["job_name"] == "phasescope"
    assert job["static_configs"] == [{"targets": [f"phasescope:{PORT}"]}]
    assert config["rule_files"] == [path.name for path in RULES]
    for path in RULES:
        assert (STACK / mounted[path.name]).samefile(path)
    (managers,) = config["alerting"]["alertmanagers"]
    assert managers["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert (
        "--enable-feature=native-histograms,exemplar-storage" in SERVICES["prometheus"]["command"]
    )


def test_data_sources_are_services_and_exemplars_lead_to_traces() -> None:
    """By the label that our exemplars have."""
    sources = {source["uid"]: source for source in provisioned("datasources.yaml")["datasources"]}

    for source in sources.values():
        host = re.fullmatch(r"http://(\w+):\d+", source["url"])
        assert host is not None
        assert host.group(1) in SERVICES
    (link,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert sources[link["datasourceUid"]]["type"] == "jaeger"
    assert f'"{link["name"]}"' in Path(prometheus_protobuf.__file__).read_text()


def test_boards_are_provisioned_from_where_they_are_mounted() -> None:
    (provider,) = provisioned("dashboards.yaml")["providers"]
    mounted = mounts(SERVICES["grafana"])
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])

    folder = provider["options"]["path"]
    assert (STACK / mounted[folder] / home.name).exists()
    assert str(home.parent) == folder
    for name in ("datasources", "dashboards"):
        target = f"/etc/grafana/provisioning/{name}/phasescope.yaml"
        assert (STACK / mounted[target]).exists()


def test_the_servers_of_kubernetes_are_found_by_the_alerts() -> None:
    """One of the two services is scraped, and the job has the name that fleet.yml asks for."""
    (monitor,) = manifests("servicemonitor.yaml")
    labels = [service["metadata"]["labels"] for service in manifests("service.yaml")]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()

    (matched,) = [found for found in labels if wanted <= found.items()]
    assert matched[monitor["spec"]["jobLabel"]] == "phasescope"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] in ROUTES
    ports = {
        port["name"] for service in manifests("service.yaml") for port in service["spec"]["ports"]
    }
    assert ports == {endpoint["port"]}


def test_the_rules_of_kubernetes_are_those_of_prometheus() -> None:
    """`python -m dashboards.stack` writes them."""
    assert prometheus_rule.PATH.read_text() == prometheus_rule.document()

    (resource,) = manifests("prometheusrule.yaml")
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    assert resource["spec"]["groups"] == groups


def test_kustomize_takes_every_manifest() -> None:
    kustomization = yaml.safe_load((STACK / "kubernetes/kustomization.yaml").read_text())

    found = {path.name for path in (STACK / "kubernetes").glob("*.yaml")}
    assert set(kustomization["resources"]) == found - {"kustomization.yaml"}
