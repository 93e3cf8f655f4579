"""A real Prometheus with the rules of this repository, that scrapes a mesh every second."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .conftest import ROOT, free_port, wait_until

BINARY = shutil.which("prometheus")


class Prometheus:
    """Of services by name, at the ports of their metrics."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        rules = ROOT / "ops" / "prometheus"
        scrapes = [
            {"job_name": f"tercet-{name}", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for name, port in ports.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules / "recording.yml"), str(rules / "alerts.yml")],
            "scrape_configs": scrapes,
        }
        # JSON is YAML as well.
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self._port = free_port()
        self._log = (folder / "prometheus.log").open("wb")
        assert BINARY is not None
        self._process = subprocess.Popen(
            [
                BINARY, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn",
            ],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._num_targets = len(ports)

    def wait_scraping(self) -> None:
        """Waits until every service has answered."""
        wait_until(lambda: self.values("up") == [1.0] * self._num_targets, "Prometheus scrapes all services")

    def get(self, path: str, **arguments: str) -> Any:
        """What its API answers. Raises OSError while it does not, or for a query that is wrong."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """Of all series that a query finds; none while it does not answer."""
        try:
            return [float(each["value"][1]) for each in self.get("query", query=query)["result"]]
        except OSError:
            return []

    def value(self, query: str) -> float:
        """Of the only one; 0 without any."""
        found = self.values(query)
        assert len(found) <= 1, query
        return found[0] if found else 0.0

    def names(self) -> set[str]:
        """All that it has scraped and recorded."""
        return set(self.get("label/__name__/values"))

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._log.close()
