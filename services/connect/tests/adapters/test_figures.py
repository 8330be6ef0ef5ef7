"""What a worker tells of itself, and how Prometheus reads it."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from tests.deploy import promlint

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.metrics import open_metrics
from headrace_connect.core.counts import Counts
from headrace_connect_worker.adapters.figures import PREFIX, publish
from headrace_connect_worker.core.figures import COUNTERS, GAUGES, Figures
from headrace_connect_worker.core.host_figures import HostFigures
from headrace_connect_worker.core.hosting import Work
from headrace_connect_worker.core.records import RunState, Status

SINK = Counts(20, 2_000, 19, 0, 1, 4, 1_500_000, 2, 3, 1_000, 2_000, 3_000, 4_000, lag_records=6)
SOURCE = Counts(5, 0, 5, 500, retained_bytes=9, delay_ms=2_500)
SPENT = {"read": 0.001, "convert": 0.002, "transform": 0.003, "write": 0.004, "commit": 1.5}


def made(statuses: list[Status]) -> Figures:
    hosts = HostFigures({Work("sink", 0): SINK, Work("source", 1): SOURCE}, {1: ("a", 10), 2: ("a", 5), 3: ("b", 1)}, 7)
    return Figures(hosts, lambda: statuses, lambda: True)


def test_every_figure_has_its_value_and_labels() -> None:
    statuses = [
        Status("sink", None, RunState.RUNNING),
        Status("source", None, RunState.FAILED),
        Status("sink", 0, RunState.RUNNING),
        Status("sink", 1, RunState.RUNNING),
        Status("sink", 2, RunState.FAILED),
        Status("gone", 0, None),
    ]
    figures = made(statuses)
    found = {name: dict(figures.values(name)) for name in [*GAUGES, *COUNTERS]}
    sink, source = ("sink", "0"), ("source", "1")
    assert found == {
        "connectors": {("sink", "running"): 1, ("source", "failed"): 1},
        "tasks": {("sink", "running"): 2, ("sink", "failed"): 1},
        "leader": {(): 1},
        "lag_records": {sink: 6},
        "source_delay_seconds": {source: 2.5},
        "retained_bytes": {source: 9},
        "hosts": {(): 3},
        "host_memory_bytes": {("a",): 15, ("b",): 1},
        "read_records": {sink: 20, source: 5},
        "read_bytes": {sink: 2_000, source: 0},
        "written_records": {sink: 19, source: 5},
        "written_bytes": {sink: 0, source: 500},
        "dead_letters": {sink: 1, source: 0},
        "commits": {sink: 4, source: 0},
        "commit_seconds": {sink: 1.5, source: 0},
        "stage_seconds": {(*sink, stage): spent for stage, spent in SPENT.items()}
        | {(*source, stage): 0 for stage in SPENT},
        "retries": {sink: 2, source: 0},
        "task_restarts": {sink: 3, source: 0},
        "host_crashes": {(): 7},
    }
    for name, family in {**GAUGES, **COUNTERS}.items():
        assert all(len(labels) == len(family.labels) for labels in found[name]), name


def test_the_page_is_what_prometheus_takes_and_has_nothing_of_what_is_gone() -> None:
    statuses = [Status("sink", 0, RunState.RUNNING)]
    figures = made(statuses)
    with open_metrics("connect", 0, Endpoint("127.0.0.1", 0)) as metrics:
        publish(metrics, figures)
        page = read(metrics.endpoint)
        assert promlint.problems(page) == []
        names = {family.name for family in text_string_to_metric_families(page) if family.name.startswith(PREFIX)}
        assert names == {PREFIX + name for name in [*GAUGES, *COUNTERS]}
        assert 'headrace_connect_written_records_total{connector="sink",task="0"} 19.0' in page
        del figures.hosts.counts[Work("sink", 0)]
        statuses.clear()
        assert 'connector="sink"' not in read(metrics.endpoint)


def read(endpoint: Endpoint | None) -> str:
    with urlopen(f"http://{endpoint}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text
