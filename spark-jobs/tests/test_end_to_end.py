"""The jobs as a scheduler runs them, on a real cluster: options in, rows and records out, an exit status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.testing.clusters import TestCluster
from headrace_jobs.arguments import EXIT_FAILED, EXIT_WRONG
from headrace_jobs.retention_audit.job import EXIT_FOUND
from headrace_jobs.retention_audit.job import main as audit
from headrace_jobs.topic_copy.job import main as copy
from headrace_jobs.topic_to_lake.job import main as to_lake
from headrace_jobs.windowed_aggregate.job import main as aggregate

pytestmark = pytest.mark.spark
Job = Callable[[Sequence[str]], int]
HOUR_MS = 3_600_000
T0 = 1_772_366_400_000
"""2026-03-01 12:00 UTC."""


def fill(cluster: TestCluster, topic: str, values: Sequence[bytes | None], **columns: list[Any]) -> None:
    """Write records, spread over partitions by ``partition=[…]``."""
    table = {"value": pa.array(values, pa.binary())}
    kinds = {"key": pa.binary(), "partition": pa.int32(), "timestamp_ms": pa.int64()}
    table |= {name: pa.array(given, kinds[name]) for name, given in columns.items()}
    with cluster.producer() as producer:
        producer.send_table(topic, pa.table(table)).result(timeout=30)


def held(cluster: TestCluster, topic: str) -> list[Any]:
    """All committed records of a topic."""
    with cluster.log_watch(isolation_level="read_committed") as watch:
        partitions = [(topic, number) for number in range(watch.topics()[topic].partitions)]
        ends = {place: bounds.end for place, bounds in watch.bounds(partitions).items()}
    found: list[Any] = []
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        while any(consumer.position(place) < end for place, end in ends.items()):
            found.extend(consumer.poll(timeout_ms=5_000))
    return found


def flights(first: int, count: int) -> tuple[list[bytes], list[int]]:
    """Flights of one minute each, over two partitions, numbered from ``first``."""
    numbers = range(first, first + count)
    rows = [{"id": n, "carrier": "UA" if n % 3 else "AA", "delay": n, "at": T0 + n * 60_000} for n in numbers]
    return [json.dumps(row).encode() for row in rows], [n % 2 for n in numbers]


@pytest.fixture
def source(headrace_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic of two partitions; jobs find the cluster in the environment."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", ",".join(headrace_cluster.bootstrap_servers))
    return headrace_cluster.unique_topic("jobs", partitions=2)


def test_a_lake_has_each_record_once_run_after_run(
    spark: SparkSession, headrace_cluster: TestCluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, checkpoint = str(tmp_path / "lake"), str(tmp_path / "checkpoint")
    begin = ["--topic", source, "--output", lake, "--checkpoint", checkpoint, "--time", "at"]
    values, partitions = flights(0, 100)
    fill(headrace_cluster, source, [*values, b"{broken", None], partition=[*partitions, 0, 1])
    assert to_lake([*begin, "--infer", "--max-offsets-per-trigger", "40"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 102
    values, partitions = flights(100, 50)
    fill(headrace_cluster, source, values, partition=partitions)
    assert to_lake(begin) == 0
    assert to_lake(begin) == 0

    rows = spark.read.parquet(lake).collect()
    places = Counter((row._partition, row._offset) for row in rows)
    assert set(places.values()) == {1}
    assert set(places) == {(partition, offset) for partition in (0, 1) for offset in range(76)}
    good = [row for row in rows if row.quality == "good"]
    assert sorted(row.id for row in good) == list(range(150))
    assert {row._reason for row in rows if row.quality == "bad"} == {
        "the value is not one JSON value",
        "the record has no value",
    }
    capsys.readouterr()
    assert to_lake(["--list-files", lake]) == 0
    files = capsys.readouterr().out.split()
    assert files
    assert sum(pq.read_metadata(file).num_rows for file in files) == 150

    assert to_lake([*begin, "--schema", "id int, carrier string, delay bigint, at bigint"]) == EXIT_FAILED
    assert "types of a lake stay" in capsys.readouterr().err
    another = [*begin[:5], str(tmp_path / "another"), *begin[6:], "--schema", "id bigint, at bigint"]
    assert to_lake(another) == EXIT_FAILED
    assert "did not write it" in capsys.readouterr().err


def test_a_copy_is_whole_and_goes_on_where_it_ended(
    spark: SparkSession, headrace_cluster: TestCluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = headrace_cluster.unique_topic("copied", partitions=2)
    begin = ["--topic", source, "--output-topic", target, "--checkpoint", str(tmp_path / "checkpoint")]
    begin += ["--schema", "id bigint, carrier string", "--filter", "json.carrier = 'UA'"]
    begin += ["--select", "json.id", "--keep", "key,partition,position"]
    for first in (0, 30):
        values, partitions = flights(first, 30)
        fill(headrace_cluster, source, values, partition=partitions, key=[b"k%d" % n for n in partitions])
        assert copy(begin) == 0
    found = held(headrace_cluster, target)
    wanted = [n for n in range(60) if n % 3]
    assert sorted(json.loads(record.value)["id"] for record in found) == wanted
    assert {(record.partition, record.key) for record in found} == {(0, b"k0"), (1, b"k1")}
    assert dict(found[0].headers).keys() == {"headrace.source.position"}
    capsys.readouterr()
    assert copy([*begin, "--filter", "no_such_column > 1"]) == EXIT_WRONG
    assert "no_such_column" in capsys.readouterr().err


def test_a_copy_of_what_is_there_now(spark: SparkSession, headrace_cluster: TestCluster, source: str) -> None:
    target = headrace_cluster.unique_topic("copied")
    fill(headrace_cluster, source, [b"a", None, b"\xff"], key=[b"1", b"2", None])
    assert copy(["--topic", source, "--output-topic", target, "--trigger", "batch"]) == 0
    found = held(headrace_cluster, target)
    assert sorted((record.key or b"", record.value or b"") for record in found) == [
        (b"", b"\xff"),
        (b"1", b"a"),
        (b"2", b""),
    ]


def test_windows_come_out_once_when_the_watermark_has_passed_them(
    spark: SparkSession, headrace_cluster: TestCluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = headrace_cluster.unique_topic("windows")
    begin = ["--topic", source, "--output-topic", target, "--checkpoint", str(tmp_path / "checkpoint")]
    begin += ["--schema", "carrier string, delay int, at bigint", "--time", "at", "--keys", "carrier"]
    begin += ["--window", "1 hour", "--aggregates", "count, sum:delay", "--ahead-max", "520000 weeks"]
    for first in (0, 90):
        values, partitions = flights(first, 90)
        fill(headrace_cluster, source, values, partition=partitions)
        assert aggregate(begin) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["rows"] == 90
    assert summary["unreadable"] == 0
    results = {
        (r.key, json.loads(r.value)["window_start"][11:16]): json.loads(r.value) for r in held(headrace_cluster, target)
    }
    counts = {place: (row["count"], row["sum_delay"]) for place, row in results.items()}
    assert counts == {
        (carrier.encode(), f"{12 + hour}:00"): (len(numbers), sum(numbers))
        for carrier in ("UA", "AA")
        for hour in (0, 1)
        for numbers in [[n for n in range(60 * hour, 60 * hour + 60) if (n % 3 > 0) == (carrier == "UA")]]
    }


def test_results_of_windows_come_again_when_they_changed(
    spark: SparkSession, headrace_cluster: TestCluster, source: str, tmp_path: Path
) -> None:
    target = headrace_cluster.unique_topic("updates")
    begin = ["--topic", source, "--output-topic", target, "--checkpoint", str(tmp_path / "checkpoint")]
    begin += ["--schema", "delay int", "--window", "1 hour", "--mode", "update", "--key-with-window"]
    for first in (0, 10):
        values, partitions = flights(first, 10)
        fill(headrace_cluster, source, values, partition=partitions, timestamp_ms=[T0 + first] * 10)
        assert aggregate(begin) == 0
    found = held(headrace_cluster, target)
    assert [record.key for record in found] == [b'{"window_start":"2026-03-01T12:00:00.000Z"}'] * 2
    assert sorted(json.loads(record.value)["count"] for record in found) == [10, 20]


def test_what_was_lost_before_it_was_read_fails_the_job(
    spark: SparkSession, headrace_cluster: TestCluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = ["--topic", source, "--output", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "checkpoint")]
    lake += ["--schema", "id bigint", "--partition-by", "_topic"]
    fill(headrace_cluster, source, [b'{"id":1}'], partition=[0])
    assert to_lake(lake) == 0
    fill(headrace_cluster, source, [b'{"id":2}', b'{"id":3}'], partition=[0, 0])
    with headrace_cluster.admin() as admin:
        admin.delete_records({(source, 0): 2})
    capsys.readouterr()
    assert to_lake(lake) == EXIT_FAILED
    assert "failOnDataLoss" in capsys.readouterr().err
    assert to_lake([*lake, "--fail-on-data-loss", "false"]) == 0
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "lake")).collect()) == [1, 3]


def test_an_audit_finds_what_is_wrong_and_says_so_to_its_scheduler(
    spark: SparkSession, headrace_cluster: TestCluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [b'{"id":%d}' % number for number in (1, 2, 3, 3)]
    fill(headrace_cluster, source, values, partition=[0, 0, 1, 1], timestamp_ms=[T0, T0 + 1, T0 + 2, T0 + 3])
    begin = ["--topic", source, "--output", str(tmp_path / "reports"), "--id", "id"]
    assert audit([*begin, "--fail-on", "gaps"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in told["findings"]] == ["duplicates"]
    assert audit([*begin, "--fail-on", "gaps,duplicates"]) == EXIT_FOUND
    report = json.loads(Path(json.loads(capsys.readouterr().out)["report"]).read_text())
    assert [(row["partition"], row["records"], row["log_start"], row["log_end"]) for row in report["partitions"]] == [
        (0, 2, 0, 2),
        (1, 2, 0, 2),
    ]
    assert report["duplicates"]["first"][0]["identity"] == "3"
    assert report["gaps"]["causes"] == {}
    stored = spark.read.parquet(str(Path(told["report"]).parent / "partitions")).collect()
    assert sorted(row.records for row in stored) == [2, 2]
    assert audit(["--topic", "no-such-topic", "--output", str(tmp_path / "reports")]) == EXIT_FAILED
    assert "no-such-topic" in capsys.readouterr().err
