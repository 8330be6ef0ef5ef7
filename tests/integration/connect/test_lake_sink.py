"""Lakes in a real bucket, and from a real cluster by processes that are killed with -9."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from libs.connect.tests.connectors.sql_sink.records import P0, TOPIC, rows
from tests.integration.connect.killing import run
from tests.integration.streams.s3_server import BUCKET, started_s3

from headrace.testing import TestCluster
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, committed_files, open_dataset
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.connectors.places import find_place, storage_options
from headrace_connect.plugin import PartitionTaken, RetriableError, Sink
from headrace_connect.testing import SinkCase
from headrace_connect.testing import memory as suite_memory
from headrace_connect.testing.sinks import check_kills

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUMBERS = count()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What is before and behind a lake's name in its URL, with a hole between."""
    with started_s3(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        endpoint = environment["AWS_ENDPOINT_URL"].removeprefix("http://")
        yield f"s3://{BUCKET}/{{}}?scheme=http&endpoint_override={endpoint}"


def numbers(url: str, table: str = TOPIC) -> list[int]:
    try:
        found: list[Any] = open_dataset(url, table).to_table(columns=["n"]).column("n").to_pylist()
    except InvalidConfig:
        return []
    return found


def test_of_two_objects_with_one_name_the_first_stays(bucket: str) -> None:
    place = find_place(bucket.format("names"))
    assert place.create("a/b", b"one")
    assert place.create("a/b", b"one"), "a repeated request finds its own object"
    assert not place.create("a/b", b"two")
    file = place.open("a/b")
    assert file is not None
    assert file.read_at(0, 10) == b"one"


def test_two_holders_in_a_bucket(bucket: str) -> None:
    url = bucket.format("holders")
    assert LakeSink(SinkSettings("lake", url)).check() == []
    sinks = [LakeSink(SinkSettings("lake", url, partition_by='odd=col("n") % 2')) for _ in range(2)]
    for sink in sinks:
        sink.start()
        sink.open([P0], 1)
        sink.write(rows([{"n": 0}, {"n": 1}]))
    sinks[1].commit({P0: 2}, b"token")
    with pytest.raises(PartitionTaken):
        sinks[0].commit({P0: 2}, None)
    assert sorted(numbers(url)) == [0, 1]
    assert len(committed_files(url)) == 2


def test_two_holders_of_a_delta_table_in_a_bucket(bucket: str) -> None:
    given = SinkSettings("lake", bucket.format("delta"), "delta", table="t")
    assert LakeSink(given).check() == []
    sinks = [LakeSink(given) for _ in range(2)]
    for sink in sinks:
        sink.start()
        sink.open([P0], 1)
        sink.write(rows([{"n": 0}, {"n": 1}]))
    sinks[1].commit({P0: 2}, b"token")
    with pytest.raises((PartitionTaken, RetriableError)):
        sinks[0].commit({P0: 2}, None)
    assert sinks[0].open([P0], 1) == {P0: 2}
    assert sinks[0].settle(b"token")
    location, options = storage_options(given.path, "t")
    assert DeltaTable(location, storage_options=options).to_pyarrow_table().num_rows == 2


class BucketCase(SinkCase):
    """A lake for each run."""

    rows = 10
    bad = frozenset({5})

    def __init__(self, bucket: str) -> None:
        self.url = bucket.format(f"lake-{next(NUMBERS)}")

    def make(self) -> Sink[Any]:
        return LakeSink(SinkSettings("lake", self.url))

    def value(self, number: int) -> Any:
        return {"n": number, "x": {}} if number in self.bad else {"n": number}

    def stored(self) -> Sequence[int]:
        return numbers(self.url, suite_memory.TOPIC)


async def test_the_suite_in_a_bucket(bucket: str) -> None:
    """Kills alone: what two holders do to each other is tested in a directory, and above."""
    await check_kills(lambda: BucketCase(bucket))


def test_a_process_is_killed_at_each_step(cluster: TestCluster, tmp_path: Path) -> None:
    topic, made, bad = cluster.unique_topic("numbers", partitions=2), 0, json.dumps({"n": -1, "x": {}}).encode()
    dead = f"{topic}-dead"
    config = {
        "name": f"lake.{topic}",
        "connector.class": "lake-sink",
        "topics": topic,
        "path": str(tmp_path / "lake"),
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
    }
    steps = ["sink.prepared", "lake.files", "lake.commits", "sink.committed", "sink.settled", "sink.grouped", ""]
    for step in steps:
        with cluster.producer() as producer:
            producer.send_many(topic, [json.dumps({"n": n}).encode() for n in range(made, made + 100)])
            producer.send(topic, bad)
            producer.flush()
        made += 100
        run(cluster, tmp_path, config, f"connect.{step}" if step else "")
    found = Counter(numbers(str(tmp_path / "lake"), topic))
    assert sorted(found) == list(range(made))
    assert set(found.values()) == {1}
    with cluster.consumer(dead, isolation_level="read_committed") as consumer:
        assert Counter(record.value for record in consumer.read_to_end(timeout_ms=60_000)) == {bad: len(steps)}
