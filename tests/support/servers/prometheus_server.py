"""A real Prometheus that scrapes one target, queried over its own API."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.server import eventually, free_port

CONFIG = Path(__file__).parents[3] / "dashboards/prometheus/prometheus.yml"
RULES = tuple(CONFIG.with_name(name) for name in ("rules.yml", "fleet.yml"))


def required() -> None:
    """Skip where Prometheus is not installed, but not where it must be."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return
    if os.environ.get("PHASESCOPE_NEED_PROMETHEUS"):
        pytest.fail("prometheus is not installed: run `make prometheus`")
    pytest.skip("prometheus is not installed: run `make prometheus`")


class Prometheus:
    """`with Prometheus("127.0.0.1:8000") as prometheus:` with our configuration, scraping
    every second or as told; without `native` it takes classic buckets, as it does by default."""

    def __init__(self, target: str, native: bool = True, every_s: int = 1) -> None:
        self._features = ("native-histograms",) if native else ()
        self._folder = tempfile.TemporaryDirectory(prefix="phasescope-prometheus-")
        folder = Path(self._folder.name)
        for rules in RULES:
            shutil.copy(rules, folder)
        text = CONFIG.read_text()
        assert "127.0.0.1:8000" in text
        text = text.replace("127.0.0.1:8000", target)
        text = text.replace("_interval: 15s", f"_interval: {every_s}s")
        (folder / "prometheus.yml").write_text(text)
        self._port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30)

    def __enter__(self) -> Prometheus:
        folder = Path(self._folder.name)
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
                f"--enable-feature={','.join((*self._features, 'exemplar-storage'))}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        try:
            eventually(self._is_ready, "a ready Prometheus", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def log(self) -> str:
        return (Path(self._folder.name) / "log").read_text()

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Result vector of an instant query, as of now."""
        return self._get("/api/v1/query", query=promql)["result"]

    def query_range(
        self, promql: str, start_s: float, end_s: float, step_s: float
    ) -> list[dict[str, Any]]:
        """Result matrix, as a panel asks for it."""
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return self._get("/api/v1/query_range", query=promql, **times)["result"]

    def value(self, promql: str) -> float | None:
        """The one value of a query; None while there is none."""
        found = self.query(promql)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def exemplars(self, promql: str) -> list[dict[str, Any]]:
        """All exemplars of the series that `promql` selects, whenever they were."""
        answer = self._get("/api/v1/query_exemplars", query=promql, start="0", end="9999999999")
        return [exemplar for series in answer for exemplar in series["exemplars"]]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self.client.get(f"{path}?{urllib.parse.urlencode(parameters)}")
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log()
        try:
            return self.client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False
