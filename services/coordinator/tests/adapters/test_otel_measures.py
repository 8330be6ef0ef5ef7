"""What Prometheus sees."""

from __future__ import annotations

from urllib.request import urlopen

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.metrics import open_metrics
from headrace_coordinator.adapters.otel_measures import GAUGES, OtelMeasures


def test_counts_times_and_gauges_are_published() -> None:
    with open_metrics("coordinator", 1, Endpoint("127.0.0.1", 0)) as metrics:
        measures = OtelMeasures(metrics)
        measures.publish({name: lambda name=name: [(7, {"of": name})] for name in GAUGES})  # a default
        measures.appended(3, 2.5)
        measures.committed(4.0)
        measures.loaded(9, 100.0)
        measures.decided(3.0)
        for verdict in (True, True, False):
            measures.ended(verdict, "client", 1_500.0)
        for count in (measures.rebalanced, measures.assigned, measures.lost):
            count()
        with urlopen(f"http://{metrics.endpoint}/metrics") as answer:
            text = answer.read().decode()
    assert 'headrace_coordinator_transactions_ended_total{cause="client",verdict="commit"} 2.0' in text
    assert 'headrace_coordinator_ending_time_seconds_bucket{le="2.0"} 3.0' in text
    lines = {line.split(" ")[0].partition("{")[0]: line for line in text.splitlines() if not line.startswith("#")}
    for name in GAUGES:
        assert lines[f"headrace_coordinator_{name}"].endswith(" 7.0"), name
    for name in ("rebalances", "assignments", "shards_lost"):
        assert lines[f"headrace_coordinator_{name}_total"].endswith(" 1.0")
    assert lines["headrace_coordinator_appended_records_total"].endswith(" 3.0")
    for name in ("append_latency", "commit_latency", "load_time", "end_latency"):
        assert lines[f"headrace_coordinator_{name}_seconds_count"].endswith(" 1.0")
    assert lines["headrace_coordinator_append_latency_seconds_sum"].endswith(" 0.0025")
