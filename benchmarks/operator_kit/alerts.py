"""A real Prometheus with our rules pages a real Alertmanager with our routes, when replicas die.

Two servers are scraped. One is killed: a ticket for that replica. The other is killed: a page for
the fleet, and the tickets are held back because the page says it all. One comes back: the page is
resolved. Every message has a `runbook_url` that leads to a page of this repository. Rules are those
that are committed, with their times; of the configurations only addresses and the times of scrapes
and of grouping are replaced.

    .venv/bin/python -m benchmarks.operator_kit.alerts
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.machine import machine
from lab.load.processes import ended, free_port
from tests.support.servers.server import eventually, spawn

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards/prometheus"
RESULTS = Path(__file__).parents[1] / "results" / "operator_alerts.json"
WITHIN_S = 180  # rules wait a minute, and staleness and grouping take their part
PAGES = "https://pages.example"


class Inbox:
    """What Alertmanager sent, by receiver, over its webhooks."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["content-length"]))
                inbox.messages.append((self.path.strip("/"), json.loads(text)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def alerts(self, receiver: str, status: str) -> list[dict[str, Any]]:
        return [
            alert
            for to, message in self.messages
            for alert in message["alerts"]
            if to == receiver and alert["status"] == status
        ]

    def has(self, receiver: str, status: str, name: str) -> bool:
        return any(a["labels"]["alertname"] == name for a in self.alerts(receiver, status))


def alertmanager_config(inbox: Inbox) -> str:
    """Ours, with webhooks in the empty receivers, and grouping in seconds."""
    config = yaml.safe_load((RULES / "alertmanager.yml").read_text())
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{inbox.url}/{receiver['name']}"}]
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "2s"}
    return yaml.safe_dump(config)


def prometheus_config(targets: list[str], alertmanager: str) -> str:
    """That of the stack, with these addresses, and a scrape a second."""
    config = yaml.safe_load((ROOT / "dashboards/stack/prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["global"]["external_labels"]["docs"] = PAGES
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": targets}]
    return yaml.safe_dump(config)


@contextlib.contextmanager
def running(words: list[str], ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the end of the block."""
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        eventually(lambda: process.poll() is not None or ready(), words[0], 60)
        assert process.poll() is None, f"{words[0]} ended"
        yield process
    finally:
        ended(process)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


class Replica:
    """A server that can be killed, and started again at the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    def start(self) -> None:
        words = ("serve", "--model", "dummy:tiny", "--port", str(self.port), "--threads", "1")
        self.process = spawn(*words, stderr=subprocess.DEVNULL, start_new_session=True)
        eventually(lambda: answers(f"http://127.0.0.1:{self.port}/ready"), "a ready server", 120)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        ended(self.process)


def page_of(url: str) -> Path:
    """The source of the page that a `runbook_url` leads to."""
    assert url.startswith(f"{PAGES}/"), url
    path = Path(url.removeprefix(f"{PAGES}/").partition("#")[0]).with_suffix(".md")
    return ROOT / path if path.parts[0] == "runbooks" else ROOT / "docs" / path


def told(inbox: Inbox, what: str, receiver: str, status: str, name: str) -> float:
    """Seconds until that message came."""
    begin_s = time.monotonic()
    eventually(lambda: inbox.has(receiver, status, name), what, WITHIN_S)
    took_s = time.monotonic() - begin_s
    print(f"  {what}: after {took_s:.0f} s", flush=True)
    return round(took_s, 1)


def drill(folder: Path, inbox: Inbox, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Kill one, kill the other, start one; what Alertmanager said."""
    replicas = [Replica(), Replica()]
    for replica in replicas:
        stack.callback(replica.stop)
    manager_port, prometheus_port = free_port(), free_port()
    manager = f"http://127.0.0.1:{manager_port}"
    (folder / "alertmanager.yml").write_text(alertmanager_config(inbox))
    targets = [f"127.0.0.1:{replica.port}" for replica in replicas]
    config = prometheus_config(targets, f"127.0.0.1:{manager_port}")
    (folder / "prometheus.yml").write_text(config)
    for name in ("rules.yml", "fleet.yml"):
        shutil.copy(RULES / name, folder)
    words = [
        "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{manager_port}",
        "--cluster.listen-address=",
    ]  # fmt: skip
    stack.enter_context(running(words, lambda: answers(f"{manager}/-/ready")))
    words = [
        "prometheus", f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{prometheus_port}",
        "--enable-feature=native-histograms,exemplar-storage",
    ]  # fmt: skip
    ready = f"http://127.0.0.1:{prometheus_port}/-/ready"
    stack.enter_context(running(words, lambda: answers(ready)))
    time.sleep(10)
    assert not inbox.messages, f"alerts while all is well: {inbox.messages}"

    found: dict[str, Any] = {}
    replicas[1].kill()
    found["one_down_s"] = told(
        inbox, "a ticket for one replica", "ticket", "firing", "PhasescopeReplicaDown"
    )
    replicas[0].kill()
    found["all_down_s"] = told(
        inbox, "a page for all", "page", "firing", "PhasescopeAllReplicasDown"
    )
    # the ticket of the second comes at the same time, and must be held back
    eventually(lambda: len(of_name(manager, "PhasescopeReplicaDown")) == 2, "both tickets", 60)
    held = of_name(manager, "PhasescopeReplicaDown")
    found["inhibited"] = [alert["labels"]["instance"] for alert in held if inhibited(alert)]
    assert len(found["inhibited"]) == 2, held
    told_of = {alert["labels"]["instance"] for alert in inbox.alerts("ticket", "firing")}
    assert told_of == {targets[1]}, told_of
    begin_s = time.monotonic()
    replicas[0].start()
    told(inbox, "the page is resolved", "page", "resolved", "PhasescopeAllReplicasDown")
    found["resolved_since_restart_s"] = round(time.monotonic() - begin_s, 1)
    return found


def of_name(manager: str, name: str) -> list[dict[str, Any]]:
    """Alerts as Alertmanager has them."""
    found = httpx.get(f"{manager}/api/v2/alerts").json()
    return [alert for alert in found if alert["labels"]["alertname"] == name]


def inhibited(alert: dict[str, Any]) -> bool:
    return bool(alert["status"]["inhibitedBy"])


def check_messages(inbox: Inbox) -> list[str]:
    """Pages that messages lead to. The label that templates use must not be sent."""
    pages: set[str] = set()
    for _, message in inbox.messages:
        assert "docs" not in message["commonLabels"], message
        for alert in message["alerts"]:
            page = page_of(alert["annotations"]["runbook_url"])
            assert page.exists(), alert["annotations"]
            pages.add(page.relative_to(ROOT).as_posix())
    return sorted(pages)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    for program in ("prometheus", "prometheus-alertmanager"):
        if shutil.which(program) is None:
            print(f"{program} is not installed: run `make prometheus`", file=sys.stderr)
            return 1
    inbox = Inbox()
    with contextlib.ExitStack() as stack:
        stack.callback(inbox.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="phasescope-alerts-"))
        try:
            found = drill(Path(folder), inbox, stack)
            found["pages"] = check_messages(inbox)
        except AssertionError as error:
            print(f"does not hold: {error}", file=sys.stderr)
            return 1
    found |= {"date": time.strftime("%Y-%m-%d %H:%M:%S %z"), "machine": machine()}
    found["messages"] = len(inbox.messages)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
