"""Dashboards and alerts look at what is exported, and the chart brings them where Prometheus and Grafana find them."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from libs.common.tests.kit.authority import Authority
from prometheus_client.parser import text_string_to_metric_families
from tests.deploy import chart, combinations, manifests, plain_yaml, promlint, promql
from tests.deploy.manifests import COMPONENT, Manifest, lasting, of_kind, one
from tests.deploy.networks import selects
from tests.deploy.test_alerts import RULES, rules

import headrace
from headrace_cli.local import LocalCluster
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.tls import Wanted
from headrace_common.runtime.tls_watch import LiveBundle, TlsMetrics
from headrace_connect_worker.adapters.figures import PREFIX as OF_CONNECT
from headrace_connect_worker.core import figures as connect
from headrace_streams.adapters.otel_figures import PREFIX
from headrace_streams.core.state.cache import StateCache
from headrace_streams.runtime.figures import Figures

SOURCE = chart.ROOT / "deploy" / "monitoring"
DASHBOARDS = sorted((SOURCE / "dashboards").glob("*.json"))
OF_OTHERS = {
    "up": {"job", "instance", "namespace"},
    "kube_cronjob_status_last_successful_time": {"cronjob", "namespace"},
}
"""Of Prometheus itself, and of kube-state-metrics."""
OF_SCRAPING = {"job", "instance", "namespace"}
"""Labels that Prometheus adds to everything."""
EXPORTED_S_MAX = 60


def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def expressions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Panel, expression, legend."""
    for panel in board(path)["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]


def every_expression() -> list[str]:
    return [rule["expr"] for rule in rules()] + [expr for path in DASHBOARDS for _, expr, _ in expressions(path)]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
class TestEachDashboard:
    def test_expressions_can_be_read_and_are_of_one_cluster(self, path: Path) -> None:
        variables = {variable["name"] for variable in board(path)["templating"]["list"]}
        for panel, expr, legend in expressions(path):
            read = promql.parse(expr)
            assert read.metrics, panel
            for metric, labels in read.metrics.items():
                assert "namespace" in labels, (panel, metric)
            used = set(re.findall(r"\$(\w+)", expr)) - {"__rate_interval"}
            assert used <= variables, panel
            named = set(re.findall(r"\{\{(\w+)\}\}", legend))
            aggregated = re.match(r"(sum|max|min|avg|histogram_quantile)\b", expr)
            assert not aggregated or named <= read.grouped, (panel, "the legend names a label that is aggregated away")

    def test_variables_ask_for_what_there_is(self, path: Path) -> None:
        for variable in board(path)["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
                assert asked
                assert promql.parse(asked[1]).metrics
                assert variable["allValue"] == ".*", "clusters outside of Kubernetes have no namespace"

    def test_panels_have_a_place_a_unit_and_an_explanation(self, path: Path) -> None:
        panels = board(path)["panels"]
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, panel["title"]
            taken |= cells
            if panel["type"] != "row":
                assert len(panel["description"]) > 10, panel["title"]
                assert panel["fieldConfig"]["defaults"]["unit"]
                assert panel["datasource"]["uid"] == "${datasource}"
        assert len({panel["id"] for panel in panels}) == len(panels)

    def test_the_commands_it_names_exist(self, path: Path) -> None:
        commands = "\n".join(p.read_text() for p in (chart.ROOT / "libs/cli/src/headrace_cli/commands").glob("*.py"))
        for named in re.findall(r"`headrace ([a-z]+) ([a-z-]+)", path.read_text()):
            assert re.search(rf"def {named[1].replace('-', '_')}_?\(", commands), named


def test_dashboards_have_names_of_their_own() -> None:
    assert [path.stem for path in DASHBOARDS] == ["brokers", "cluster", "connect", "groups", "streams", "topics"]
    assert [board(path)["uid"] for path in DASHBOARDS] == [f"headrace-{path.stem}" for path in DASHBOARDS]


@pytest.mark.integration
def test_everything_they_name_is_exported_with_those_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_COORDINATOR_GROUP_LAG_INTERVAL_MS", "300")
    with LocalCluster(tmp_path, brokers=1, restart=False) as cluster:
        _use(cluster.bootstrap_servers)
        end = time.monotonic() + EXPORTED_S_MAX
        others = exported_by_streams() | exported_by_connect() | exported_with_tls(tmp_path / "tls")
        while (missing := _missing(_exported(cluster) | others)) and time.monotonic() < end:
            time.sleep(0.3)  # lag is looked at now and then
        assert not missing
        assert {name: promlint.problems(page) for name, page in _pages(cluster).items()} == {
            f"{role}-1": [] for role in ("controller", "broker", "coordinator", "admin")
        }


def _use(bootstrap: str) -> None:
    """What makes each metric appear: records, a group that commits, a transaction that ends."""
    with headrace.AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topic("watched", partitions=1)
    with headrace.Producer(bootstrap_servers=bootstrap, transactional_id="watch") as producer, producer.transaction():
        producer.send("watched", value=b"1")
    for protocol in ("consumer", "classic"):
        with headrace.Consumer(
            "watched",
            bootstrap_servers=bootstrap,
            group_id=f"watchers-{protocol}",
            group_protocol=protocol,
            auto_offset_reset="earliest",
        ) as consumer:
            while not consumer.poll(timeout_ms=1000):
                pass
            consumer.commit()


def _pages(cluster: LocalCluster) -> dict[str, str]:
    """The metrics of each process of ours."""
    pages = {}
    for process in cluster.processes:
        if process.role != "etcd" and process.metrics is not None:
            with urllib.request.urlopen(f"http://{process.metrics}/metrics", timeout=10) as answer:
                pages[process.name] = answer.read().decode()
    return pages


def _exported(cluster: LocalCluster) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for process in cluster.processes:
        for name, labels in _told_at(process.metrics).items():
            found.setdefault(name, set()).update(labels)
    return found


def _told_at(metrics: object) -> dict[str, set[str]]:
    """The names on a page, each with its labels."""
    found: dict[str, set[str]] = {}
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


SOUND = """
# HELP headrace_x_total X
# TYPE headrace_x_total counter
headrace_x_total{topic="t"} 1.0
# HELP headrace_y_seconds Y
# TYPE headrace_y_seconds histogram
headrace_y_seconds_bucket{le="0.1"} 1.0
headrace_y_seconds_bucket{le="+Inf"} 1.0
headrace_y_seconds_count 1.0
headrace_y_seconds_sum 0.05
"""


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("X\n", "\n", "no help text"),
        ("# TYPE headrace_x_total counter\n", "", "no type"),
        ("y_seconds", "y_milliseconds", 'use base unit "seconds" instead of "milliseconds"'),
        ("y_seconds", "y_ms", "abbreviated units"),
        ("x_total counter", "x_total gauge", 'should not have "_total" suffix'),
        ("headrace_x_total", "headrace_x", 'should have "_total" suffix'),
        ("y_seconds histogram", "y_seconds gauge", 'should not have "_bucket" suffix'),
        ("y_seconds histogram", "y_seconds counter", 'should not have "_count" suffix'),
        ('topic="t"', 'le="1"', 'should not have "le" label'),
        ('topic="t"', 'quantile="1"', 'should not have "quantile" label'),
        ("headrace_x_total", "headrace_counter_x_total", "should not include type 'counter'"),
        ("headrace_x_total", "headrace:x_total", "should not contain ':'"),
        ("headrace_x_total", "headraceX_total", "metric names should be written in 'snake_case'"),
        ("topic=", "topicName=", "label names should be written in 'snake_case'"),
        ('topic="t"', 'topic=""', "a label is empty"),
        (
            'headrace_x_total{topic="t"} 1.0',
            'headrace_x_total{topic="t"} 1.0\nheadrace_x_total{topic="t"} 2.0',
            "unique",
        ),
    ],
)
def test_each_rule_of_promtool_is_known(was: str, now: str, says: str) -> None:
    assert promlint.problems(SOUND) == []
    found = promlint.problems(SOUND.replace(was, now))
    assert any(says in one for one in found), found


def exported_by_streams() -> dict[str, set[str]]:
    """What a worker of streams tells, with all that it may have something to say of."""
    task = SimpleNamespace(watermark=0, held_by=("a", 1.0))
    owned: Any = {"task": SimpleNamespace(task=task)}
    figures = Figures(
        cache=StateCache(0),
        read=Counter(topic=1),
        read_bytes=Counter(topic=1),
        written=Counter(topic=1),
        met={what: Counter(node=1) for what in ("late", "failed", "dropped", "hits", "misses")},
        written_bytes=Counter(topic=1),
        taken=Counter(node=1),
        given=Counter(node=1),
        dirty={"node": 1},
        lags={("topic", 0): 1},
        states={"running": 1},
        restoring={"task": 1},
        owned=owned,
    )
    names = {name: name for name in figures.gauges} | {name: f"{name}_total" for name in figures.counters}
    told = {PREFIX + as_: {*labels} for name, as_ in names.items() for _, labels in figures.values(name, 0.0)}
    return told | {f"{PREFIX}commit_seconds_{part}": {"le"} for part in ("bucket", "count", "sum")}


def test_what_they_name_of_streams_is_told_by_workers() -> None:
    exprs = [expr for expr in every_expression() if PREFIX in expr]
    assert len(exprs) > 10
    assert not _missing(exported_by_streams(), exprs)


def exported_by_connect() -> dict[str, set[str]]:
    """What a Connect worker tells."""
    families = connect.GAUGES | {f"{name}_total": family for name, family in connect.COUNTERS.items()}
    return {OF_CONNECT + name: {*family.labels} for name, family in families.items()}


def test_what_they_name_of_connect_is_told_by_workers() -> None:
    exprs = [expr for expr in every_expression() if OF_CONNECT in expr]
    assert len(exprs) > 10
    assert not _missing(exported_by_connect(), exprs)


def exported_with_tls(directory: Path) -> dict[str, set[str]]:
    """What a process with certificates tells besides."""
    files = Authority().files(directory)
    with open_metrics("tls", 1, Endpoint("127.0.0.1", 0)) as metrics:
        measured = TlsMetrics(metrics.meter)
        LiveBundle("service", files, Wanted(), SystemClock(), measured)
        measured.count_refused("service")
        return _told_at(metrics.endpoint)


def test_what_they_name_of_certificates_is_told_by_services(tmp_path: Path) -> None:
    exprs = [expr for expr in every_expression() if "headrace_tls_" in expr]
    assert len(exprs) == 3
    assert not _missing(exported_with_tls(tmp_path / "tls"), exprs)


def _missing(exported: dict[str, set[str]], exprs: Sequence[str] = ()) -> list[str]:
    known = {**OF_OTHERS, **{name: labels | OF_SCRAPING for name, labels in exported.items()}}
    found = []
    for expr in exprs or every_expression():
        read = promql.parse(expr)
        for metric, labels in read.metrics.items():
            if metric not in known:
                found.append(f"{metric} is not exported: {expr}")
            elif not labels <= known[metric]:
                found.append(f"{metric} has no {labels - known[metric]}: {expr}")
        if read.metrics.keys() <= known.keys():
            there = set().union(*(known[metric] for metric in read.metrics)) if read.metrics else set()
            if not read.grouped <= there:
                found.append(f"nothing has {read.grouped - there}: {expr}")
    return found


def test_a_metric_or_a_label_that_is_not_there_is_found() -> None:
    exported = {metric: {"le"} | labels for expr in every_expression() for metric, labels in _labels(expr).items()}
    assert not _missing(exported)
    assert _missing({name: labels for name, labels in exported.items() if name != "headrace_controller_active"})
    assert _missing({**exported, "headrace_rpc_calls_total": {"method"}})


def _labels(expr: str) -> dict[str, set[str]]:
    read = promql.parse(expr)
    return {metric: {"error", "group", *labels, *_GROUPED} for metric, labels in read.metrics.items()}


_GROUPED = {label for expr in every_expression() for label in promql.parse(expr).grouped}


@pytest.mark.chart
class TestInTheChart:
    def test_nothing_is_there_unless_it_is_asked_for(self) -> None:
        kinds = {manifest["kind"] for manifest in chart.render()}
        assert not kinds & {"PodMonitor", "PrometheusRule"}
        assert not [m for m in chart.render() if "dashboard" in m["metadata"]["name"]]

    def test_the_pod_monitor_finds_every_pod_by_a_port_that_it_has(self) -> None:
        rendered = combinations.render("monitoring")
        monitor = one(rendered, "PodMonitor/headrace")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": [chart.NAMESPACE]}
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["interval"] == "15s"
        for pod in manifests.pods(rendered):
            is_lasting = pod in list(lasting(rendered))
            assert selects(monitor["spec"]["selector"], pod.labels) is is_lasting, pod.name
            if is_lasting:
                assert endpoint["port"] in {port["name"] for port in pod.main["ports"]}
        (job,) = (r for r in endpoint["relabelings"] if r["targetLabel"] == "job")
        label = COMPONENT.replace(".", "_").replace("/", "_").replace("-", "_")
        assert job["sourceLabels"] == [f"__meta_kubernetes_pod_label_{label}"]
        assert re.fullmatch("headrace.*", job["replacement"]), "alerts look for jobs of such names"

    def test_the_rule_has_all_alerts_with_the_address_of_help(self) -> None:
        spec = one(combinations.render("monitoring"), "PrometheusRule/headrace")["spec"]
        wanted = plain_yaml.read(RULES.read_text())
        for group in wanted["groups"]:
            for rule in group["rules"]:
                rule["annotations"]["runbook"] = f"https://example.com/headrace/{rule['annotations']['runbook']}"
        assert spec == wanted
        bare = chart.render({"monitoring": {"prometheusRule": {"enabled": True}}})
        assert one(bare, "PrometheusRule/headrace")["spec"] == plain_yaml.read(RULES.read_text())

    def test_each_dashboard_comes_whole(self) -> None:
        rendered = combinations.render("monitoring")
        for path in DASHBOARDS:
            made = one(rendered, f"ConfigMap/headrace-dashboard-{path.stem}")
            assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
            assert made["metadata"]["annotations"] == {"grafana_folder": "Headrace"}
            assert {name: json.loads(text) for name, text in made["data"].items()} == {
                f"headrace-{path.stem}.json": board(path)
            }

    def test_they_go_to_the_namespace_that_is_named(self) -> None:
        asked = {"enabled": True, "namespace": "watch"}
        found = chart.render({"monitoring": dict.fromkeys(("podMonitor", "prometheusRule", "dashboards"), asked)})
        there = [m for m in found if m["metadata"].get("namespace") == "watch"]
        assert len(there) == 2 + len(DASHBOARDS)
        assert {m["kind"] for m in there} == {"PodMonitor", "PrometheusRule", "ConfigMap"}

    def test_labels_of_users_do_not_take_the_place_of_ours(self) -> None:
        asked = {"enabled": True, "labels": {"app.kubernetes.io/name": "x", "mine": "y"}}
        monitor: list[Manifest] = of_kind(chart.render({"monitoring": {"podMonitor": asked}}), "PodMonitor")
        assert monitor[0]["metadata"]["labels"]["app.kubernetes.io/name"] == "headrace"
        assert monitor[0]["metadata"]["labels"]["mine"] == "y"
