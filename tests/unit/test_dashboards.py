"""The dashboard, Prometheus and compose files agree with the code: names, labels, limits, versions, ports."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

import pytest
import yaml

from lake import metrics

INFRA = Path(__file__).parents[2] / "infra"
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
PROMETHEUS: dict[str, Any] = yaml.safe_load((INFRA / "prometheus/prometheus.yml").read_text())
DASHBOARD: dict[str, Any] = json.loads((INFRA / "grafana/dashboards/headrace.json").read_text())
OF_TARGETS = {"run", "process", "instance", "job"}
"""Labels that come with the target: lake.metrics.write_targets, and Prometheus itself."""


def _series() -> dict[str, set[str]]:
    """Every series that our processes expose, with its own labels."""
    metrics.log_metrics("sqlite"), metrics.worker_metrics(), metrics.proxy_metrics()
    found: dict[str, set[str]] = {}
    families = {f.name: f for f in metrics.REGISTRY.collect()}
    for collector in list(metrics.REGISTRY._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for name in metrics.REGISTRY._collector_to_names[collector]:
            if name.endswith("_created"):
                continue
            if name in families and families[name].type in ("counter", "histogram"):
                continue  # the family's name is not a series
            found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    for family in families.values():  # the collector of the process says its names only when it collects
        if family.name.startswith("process_"):
            found |= {sample.name: set() for sample in family.samples}
    return found


SERIES = _series()
NAME = r"\b(?:headrace|process)_[a-z_]+"


def panels() -> list[dict[str, Any]]:
    return [p for p in DASHBOARD["panels"] if p["type"] != "row"]


EXPRESSIONS = [(p["title"], t["expr"]) for p in panels() for t in p["targets"]]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_every_expression_is_of_our_series(title: str, expression: str) -> None:
    used = re.findall(rf"({NAME})\{{([^}}]*)\}}", expression)
    assert used, expression
    assert len(used) == len(re.findall(NAME, expression)), "every series is selected by its run"
    assert expression.count("(") == expression.count(")")
    labels = set(OF_TARGETS)
    for name, selector in used:
        assert name in SERIES, f"{title}: no metric {name}"
        matched = set(re.findall(r"(\w+)\s*(?:=~|=|!=|!~)", selector))
        assert matched <= SERIES[name] | OF_TARGETS, f"{title}: {name} has no label {matched}"
        assert 'run=~"$run"' in selector
        labels |= SERIES[name]
        if name.endswith(("_total", "_bucket", "_sum", "_count")) and "increase" not in expression:
            inside = re.search(rf"(?:rate)\({name}\{{", expression)
            assert inside or "dead_letters" in name, f"{title}: {name} only grows; take its rate"
    grouped = {g.strip() for part in re.findall(r"by \(([^)]*)\)", expression) for g in part.split(",")}
    assert grouped <= labels, f"{title}: by {grouped - labels}"
    if "histogram_quantile" in expression:
        assert "le" in grouped
        assert all(name.endswith("_bucket") for name, _ in used)


@pytest.mark.parametrize("panel", panels(), ids=lambda p: p["title"])
def test_every_legend_names_a_label_that_is_kept(panel: dict[str, Any]) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        kept = {g.strip() for part in re.findall(r"by \(([^)]*)\)", target["expr"]) for g in part.split(",")}
        assert named <= kept


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name) for _, e in EXPRESSIONS for name in re.findall(NAME, e)
    }
    declared = {re.sub(r"_(bucket|sum|count)$", "", name) for name in SERIES if name.startswith("headrace_")}
    assert declared - shown == set()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert DASHBOARD["schemaVersion"] >= 39  # Grafana 11


def test_a_variable_asks_for_a_series_that_exists() -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            assert name in SERIES
            assert label in OF_TARGETS


def _template() -> dict[str, str]:
    lines = (INFRA / "kafka/server.properties.tmpl").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    one_node = {"@NODE@": "1", "@REPLICAS@": "1", "@IN_SYNC@": "1"}
    return {name: one_node.get(setting, setting) for name, setting in found.items()}


def test_kafka_of_compose_has_the_settings_of_ours() -> None:
    ours = _template()
    theirs = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): str(setting)
        for name, setting in SERVICES["kafka"]["environment"].items()
    }
    placed = {"controller.quorum.voters", "listeners", "advertised.listeners", "log.dirs"}
    placed |= {n for n, setting in ours.items() if "@" in setting}  # where it lies, and its listeners
    assert {n: s for n, s in ours.items() if n not in placed} == {
        n: s for n, s in theirs.items() if n not in placed
    }
    assert theirs["advertised.listeners"].endswith(
        f"//127.0.0.1:{SERVICES['kafka']['ports'][0].split(':')[1]}"
    )
    assert SERVICES["kafka"]["volumes"] == [f"kafka:{theirs['log.dirs']}"]


def test_kafka_of_compose_has_our_version() -> None:
    pom = Xml.parse(INFRA / "kafka/pom.xml")
    version = pom.findtext(".//{*}properties/{*}kafka.version")
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"


def test_only_this_machine_reaches_a_service() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]), name  # a pinned version
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        if service.get("network_mode") == "host":
            said = [*service.get("command", ()), *service.get("environment", {}).values()]
            assert any(re.search(r"(^|=)127\.0\.0\.1(:\d+)?$", str(word)) for word in said), name
        else:
            assert "network_mode" not in service, name


def test_prometheus_finds_what_a_run_writes(tmp_path: Path) -> None:
    path = metrics.write_targets(tmp_path / ".." / tmp_path.name, "proxy", ["127.0.0.1:8080"])
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    (pattern,) = job["file_sd_configs"][0]["files"]
    mounts = [v for v in SERVICES["prometheus"]["volumes"] if isinstance(v, dict)]
    (folder,) = {m["target"] for m in mounts}
    assert Path(folder, path.name).match(pattern)
    (group,) = json.loads(path.read_text())
    assert group["targets"] == ["127.0.0.1:8080"]
    assert set(group["labels"]) == OF_TARGETS - {"instance", "job"}
    assert not list(tmp_path.glob("*.part"))


def test_mounted_files_exist_and_grafana_finds_its_data() -> None:
    for service in SERVICES.values():
        for volume in service["volumes"]:
            if isinstance(volume, str) and volume.startswith("./"):
                assert (INFRA / volume.split(":")[0]).exists()
            elif isinstance(volume, str):
                assert volume.split(":")[0] in COMPOSE["volumes"]
    (source,) = yaml.safe_load((INFRA / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    listens = next(w for w in SERVICES["prometheus"]["command"] if "listen-address" in w).split("=")[1]
    assert source["url"] == f"http://{listens}"
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((INFRA / "grafana/provisioning/dashboards/headrace.yaml").read_text())[
        "providers"
    ]
    mounted = {v.split(":")[1] for v in SERVICES["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted
