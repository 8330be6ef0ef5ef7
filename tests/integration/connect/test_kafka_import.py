"""A twin of Kafka that is copied: the page's quick start, killed on its way, followed, left by its group."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from libs.connect.tests.connectors.kafka_import.twin import Broker, Log, Topic
from tests.integration.connect.killing import run
from tests.integration.connect.test_mirror import contents, copy, read_some, records, servers
from typer.testing import CliRunner

from headrace.records import TopicPartition
from headrace.testing import TestCluster
from headrace_cli.app import app
from headrace_common.runtime.clock import SystemClock
from headrace_connect.connectors.copying.cutover import read_histories
from headrace_connect.runtime.failing import TaskFailed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "kafka-import.md"
FOR_EVER = {"retention.ms": "-1"}
"""Of topics whose times are of 2020: else their records may be deleted while a test runs."""
Told = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


@pytest.fixture
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def config_of(kafka: Broker, name: str, **settings: str) -> dict[str, Any]:
    """The quick start of the page, without what its cluster has for security."""
    [example, *_] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    kept = {
        key: str(value)
        for key, value in yaml.safe_load(example).items()
        if ".security." not in key and ".sasl." not in key
    }
    given = {one.replace("_", "."): value for one, value in settings.items()}
    own = {"name": name, "source.cluster.alias": name, "source.cluster.bootstrap.servers": kafka.bootstrap}
    return kept | own | given


def told(number: int) -> Told:
    headers = [("n", b"%d" % number), ("n", None), ("", b"")] if number % 3 else []
    value = None if number % 7 == 0 else b"%d" % number
    return b"k%d" % number if number % 2 else None, value, headers, 1_600_000_000_000 + number


def write(kafka: Broker, topic: str, first: int, seen: dict[int, list[tuple[int, Told]]]) -> None:
    """In transactions, aborted ones, and none; what readers see is added, with its offset."""
    for partition, log in enumerate(kafka.state.topics[topic].logs):
        with kafka.state.changing():
            for step, commits in enumerate((True, False, None)):
                rows = [told(first + 100 * partition + 10 * step + number) for number in range(10)]
                start = log.end
                log.write(rows, commits)
                if commits is not False:
                    seen[partition] += list(enumerate(rows, start))


def test_the_quick_start_killed_and_left_by_its_group(kafka: Broker, cluster: TestCluster, tmp_path: Path) -> None:
    topic = "orders"
    seen: dict[int, list[tuple[int, Told]]] = {0: [], 1: []}
    with kafka.state.changing():
        kafka.state.topics[topic] = Topic([Log(), Log()], FOR_EVER)
        kafka.state.topics["shop.parcels"] = Topic([Log()])
    config = config_of(kafka, "kafka1", offset_flush_interval_ms="50", batch_max_rows="7")
    write(kafka, topic, 1_000, seen)
    run(cluster, tmp_path, config, "connect.source.positions")
    write(kafka, topic, 2_000, seen)
    with kafka.state.changing():  # Kafka compacts, and leaves gaps
        for partition, log in enumerate(kafka.state.topics[topic].logs):
            gone = seen[partition][-3][0]
            log.compact(gone)
            seen[partition] = [one for one in seen[partition] if one[0] != gone]
    run(cluster, tmp_path, config)
    assert contents(cluster, topic) == {partition: [row for _, row in own] for partition, own in seen.items()}
    with cluster.admin() as admin:
        assert dict(admin.describe_topic(topic).configs) == FOR_EVER
        assert "shop.parcels" in {one.name for one in admin.list_topics()}
    assert_translated(kafka, cluster, topic, seen)

    positions = {(topic, 0): seen[0][5][0], (topic, 1): seen[1][-3][0] - 1}  # one is in the gap
    with kafka.state.changing():
        kafka.state.groups["billing"] = positions
        kafka.state.members["billing"] = 2
    words = ["connect", "cutover", str(tmp_path / "kafka1.json"), "billing", "--bootstrap", servers(cluster)]
    refused = CliRunner().invoke(app, words)
    assert "group billing has 2 members at the source" in refused.output
    kafka.state.members.clear()
    done = CliRunner().invoke(app, [*words, "-o", "json", "--execute"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["positions"]) == 2
    wanted = [row for number, own in seen.items() for offset, row in own if offset >= positions[topic, number]]
    assert sorted(read_some(cluster, topic, "billing", len(wanted)), key=str) == sorted(
        (row[1] or row[0] for row in wanted), key=str
    )


def assert_translated(kafka: Broker, target: TestCluster, topic: str, seen: dict[int, list[tuple[int, Told]]]) -> None:
    """Each position of the source is where its record is, and the end is behind the last one."""
    partitions = [TopicPartition(topic, number) for number in seen]
    known = asyncio.run(read_histories(servers(target), "kafka1.offset-syncs", partitions, 60_000, SystemClock()))
    copies = records(target, topic)
    for at in partitions:
        pairs = list(zip((offset for offset, _ in seen[at.partition]), copies[at.partition], strict=True))
        end = kafka.state.topics[topic].logs[at.partition].end
        assert known[at].copied == end
        for position in range(end + 1):
            behind = [copied.offset for original, copied in pairs if original >= position]
            assert known[at].translate(position) == (behind[0] if behind else pairs[-1][1].offset + 1)


def test_what_is_lost_or_made_again_is_told(kafka: Broker, cluster: TestCluster) -> None:
    seen: dict[int, list[tuple[int, Told]]] = {0: []}
    with kafka.state.changing():
        kafka.state.topics["short"] = Topic([Log()])
    config = config_of(kafka, "kafka2", topics="short")
    tolerant = config | {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "short-gone"}
    write(kafka, "short", 0, seen)
    copy(config, cluster)
    position = kafka.state.topics["short"].logs[0].end
    write(kafka, "short", 1_000, seen)
    with kafka.state.changing():
        kafka.state.topics["short"].logs[0].delete_below(position + 5)
    with pytest.raises(
        TaskFailed, match=f"offset {position} does not exist.*up to 5 records are lost.*errors.tolerance"
    ):
        copy(config, cluster)
    copy(tolerant, cluster)
    with kafka.state.changing():
        kafka.state.topics["short"] = Topic([Log(), Log()])
        kafka.state.topics["short"].logs[1].write([told(1)], None)
    with pytest.raises(TaskFailed, match="deleted at the source and made again"):
        copy(config, cluster)
    copy(tolerant, cluster)
    copied = contents(cluster, "short")
    lost = [offset for offset, _ in seen[0] if position <= offset < position + 5]
    assert (len(copied[0]), copied[1]) == (len(seen[0]) - len(lost), [told(1)])
    gone = [json.loads(one.value) for one in records(cluster, "short-gone")[0]]
    assert [(one["from"], one["to"]) for one in gone][:1] == [(position, position + 5)]
    with kafka.state.changing():
        del kafka.state.topics["short"]
    with pytest.raises(TaskFailed, match="there is no topic short at the source"):
        copy(config, cluster)
