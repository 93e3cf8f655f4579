"""Rules, alerts, the dashboard and the page speak of what services tell, and of nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.metrics import METRICS as GATEWAY
from scheduler.metrics import METRICS as SCHEDULER
from tercet.metrics.collector import COMMON
from tercet.metrics.metric import Kind
from worker.metrics import METRICS as WORKER

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "ops"
PROMETHEUS = OPS / "prometheus"
METRICS = {metric.name: metric for metric in (*COMMON, *GATEWAY, *SCHEDULER, *WORKER)}
# What Prometheus adds to each.
TARGET_LABELS = {"job", "instance"}
PROMTOOL = shutil.which("promtool")


def _expressions() -> Iterator[tuple[str, str]]:
    """Each query with where it stands."""
    for name in ("recording.yml", "alerts.yml"):
        text = (PROMETHEUS / name).read_text(encoding="utf-8")
        for block in re.split(r"^ +- (?:record|alert): ", text, flags=re.MULTILINE)[1:]:
            found = re.search(r"^ +expr: (?:>-\n)?(.*?)(?=^ +(?:for|labels|- )|\Z)", block, re.MULTILINE | re.DOTALL)
            yield f"{name} {block.splitlines()[0]}", found.group(1)
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"dashboard {panel['title']} {target['refId']}", target["expr"]


def _dashboard() -> dict:
    return json.loads((OPS / "grafana" / "tercet-mesh.json").read_text(encoding="utf-8"))


def _recorded() -> set[str]:
    return set(re.findall(r"- record: (\S+)", (PROMETHEUS / "recording.yml").read_text(encoding="utf-8")))


def _series() -> dict[str, set[str]]:
    """All names that can be asked for, with their labels."""
    found: dict[str, set[str]] = {}
    for metric in METRICS.values():
        if metric.kind is Kind.HISTOGRAM:
            found |= {f"{metric.name}_{part}": set(metric.labels) for part in ("count", "sum")}
            found[f"{metric.name}_bucket"] = {*metric.labels, "le"}
        else:
            found[metric.name] = set(metric.labels)
    return found


EXPRESSIONS = dict(_expressions())


def test_there_is_something_to_look_at():
    assert sum(where.startswith("alerts") for where in EXPRESSIONS) > 12
    assert sum(where.startswith("recording") for where in EXPRESSIONS) > 8
    assert sum(where.startswith("dashboard") for where in EXPRESSIONS) > 30


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_a_query_asks_for_what_there_is(where):
    expression, series, recorded = EXPRESSIONS[where], _series(), _recorded()
    found = re.findall(r"((?:\w+:)?\b(?:tercet|process|up)\w*(?::\w+)?)\s*(?:\{([^}]*)\})?", expression)
    assert found
    for name, matchers in found:
        if name in recorded or name in ("up", "process_cpu_seconds_total", "process_resident_memory_bytes"):
            continue
        assert name in series, name
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert labels <= series[name] | TARGET_LABELS, (name, labels)


def test_what_is_recorded_is_asked_for():
    asked = "\n".join(text for where, text in EXPRESSIONS.items() if not where.startswith("recording"))
    # The quantiles are for people and for other dashboards.
    assert {name for name in _recorded() if name not in asked} <= {
        "class:tercet_time_to_first_token_seconds:p95_5m",
        "class:tercet_inter_token_seconds:p95_5m",
    }


def test_the_dashboard_has_its_rows_and_no_panel_in_anothers_place():
    dashboard = _dashboard()
    assert dashboard["uid"] == "tercet-mesh"
    assert [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"] == [
        "Promise", "Traffic", "Memory", "Steps", "Books",
    ]  # fmt: skip
    assert [each["type"] for each in dashboard["templating"]["list"]] == ["datasource", "query"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"


def test_the_page_has_what_services_tell():
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        if line.startswith("| `tercet_"):
            name, kind, labels, meaning = (cell.strip() for cell in line.split("|")[1:5])
            assert name not in rows
            rows[name.strip("`")] = (kind, re.findall(r"`(\w+)`", labels), meaning)
    assert rows == {name: (each.kind.value, list(each.labels), each.help) for name, each in METRICS.items()}


def test_names_follow_the_rules():
    for name, metric in METRICS.items():
        assert re.fullmatch(r"tercet_[a-z][a-z0-9_]*[a-z0-9]", name)
        assert name.endswith("_total") is (metric.kind is Kind.COUNTER), name
        assert not re.search(r"_(ms|us|milliseconds|minutes|percent|kib|mib)(_|$)", name)
        assert all(re.fullmatch(r"[a-z]+", label) and label != "le" for label in metric.labels)
        assert metric.help
        assert not metric.help.endswith(".")


def test_every_alert_has_its_section_and_its_test():
    alerts = re.findall(r"- alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
    told = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    tested = (PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8")
    links = re.findall(r"runbook_url: (\S+)", (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
    assert links == [f"docs/troubleshooting.md#{name.lower()}" for name in alerts]
    headings = {line.strip("# ").lower() for line in told.splitlines() if line.startswith("#")}
    for name in alerts:
        assert name.lower() in headings, name
        assert re.search(rf"alertname: {name}\n +exp_alerts:", tested), name


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not there (Debian's prometheus has it)")
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "recording.yml", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(arguments):
    done = subprocess.run([PROMTOOL, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
