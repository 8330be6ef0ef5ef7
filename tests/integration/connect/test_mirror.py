"""A cluster that is copied to another one: killed at each step, followed in what it changes, and left by its groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from libs.connect.tests.connectors.copying.contract import ClusterContract, Read, Site
from tests.integration.connect.killing import run
from typer.testing import CliRunner

from headrace.records import Record, TopicPartition
from headrace.testing import TestCluster, started_cluster
from headrace_cli.app import app
from headrace_common.runtime.clock import SystemClock
from headrace_connect.connectors.copying.cutover import read_histories
from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.mirror.cluster import SdkCluster
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.running import run_connector
from headrace_connect.settings import Secrets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
FOR_EVER = "-1"
"""Retention of topics whose times are of 2020: else their records may be deleted while a test runs."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("source") / "data") as started:
        yield started


def servers(cluster: TestCluster) -> str:
    return ",".join(cluster.bootstrap_servers)


def mirror(source: TestCluster, *topics: str, **settings: str) -> dict[str, str]:
    return {
        "name": f"mirror.{topics[0]}",
        "connector.class": "mirror",
        "source.cluster.alias": f"of-{topics[0].rstrip('.*')}",
        "source.cluster.bootstrap.servers": servers(source),
        "topics": ",".join(topics),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def copy(config: dict[str, str], target: TestCluster) -> None:
    """In this process, until everything that is there is copied."""
    configured = configure(config, Secrets())
    asyncio.run(run_connector(configured, RunConfig(servers(target)), asyncio.Event(), until_idle=True))


def records(cluster: TestCluster, topic: str) -> dict[int, list[Record[Any, Any]]]:
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        found = consumer.read_to_end(timeout_ms=60_000)
        partitions = consumer.partitions_for(topic)
    return {number: [one for one in found if one.partition == number] for number in sorted(partitions)}


def told(one: Record[Any, Any]) -> tuple[Any, ...]:
    return one.key, one.value, list(one.headers), one.timestamp_ms


def contents(cluster: TestCluster, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    return {number: [told(one) for one in own] for number, own in records(cluster, topic).items()}


def write(cluster: TestCluster, topic: str, first: int, count: int = 40) -> None:
    """Records of all kinds; some in a transaction that is committed, and some in one that is not."""
    with cluster.producer(transactional_id=f"writer-{topic}") as producer:
        producer.init_transactions()
        for commits in (True, False):
            producer.begin_transaction()
            for number in range(first, first + count // 2):
                value = f"{number} is seen" if commits else "never seen"
                producer.send(topic, value.encode(), key=b"tx" if number % 2 else None)
            (producer.commit_transaction if commits else producer.abort_transaction)()
    with cluster.producer() as producer:
        for number in range(first + count // 2, first + count):
            headers = [("n", b"%d" % number), ("n", None), ("", b"")] if number % 3 else None
            value = None if number % 7 == 0 else b"%d" % number
            producer.send(topic, value, key=b"k%d" % number, headers=headers, timestamp_ms=1_600_000_000_000 + number)
        producer.flush()


def read_some(cluster: TestCluster, topic: str, group: str, count: int) -> list[bytes | None]:
    """What a member of the group reads and commits before it leaves."""
    settings: dict[str, Any] = {"group_id": group, "isolation_level": "read_committed", "enable_auto_commit": False}
    found: list[Any] = []
    with cluster.consumer(topic, **settings) as consumer:
        while len(found) < count:
            found += [one.value or one.key for one in consumer.poll(timeout_ms=1_000, max_records=count - len(found))]
        consumer.commit()
    return found


def test_killed_at_the_steps_of_a_commit_and_left_by_its_group(
    source: TestCluster, cluster: TestCluster, tmp_path: Path
) -> None:
    topic = source.unique_topic("orders", partitions=2, retention_ms=FOR_EVER)
    config = mirror(source, topic, offset_flush_interval_ms="50", batch_max_rows="7")
    write(source, topic, 0)
    read = read_some(source, topic, "billing", 25)
    for number, step in enumerate(("noted", "positions", "committed"), 1):
        run(cluster, tmp_path, config, f"connect.source.{step}")
        write(source, topic, number * 1_000)
    run(cluster, tmp_path, config)
    assert contents(cluster, topic) == contents(source, topic)
    assert_translated(source, cluster, topic, config)

    file = tmp_path / f"{config['name']}.json"
    words = ["connect", "cutover", str(file), "billing", "--bootstrap", servers(cluster), "-o", "json"]
    plan = CliRunner().invoke(app, words)
    assert plan.exit_code == 0, plan.output
    assert "nothing was changed" in plan.stderr
    read += read_some(source, topic, "billing", 30)  # it goes on, for nothing was changed
    done = CliRunner().invoke(app, [*words, "--execute"])
    assert done.exit_code == 0, done.output
    assert f"group_id=billing, topics {topic}" in done.stderr
    positions = json.loads(done.stdout)["positions"]
    assert {one["source"] for one in positions} == {f"{topic}-0", f"{topic}-1"}
    wanted = [one.value or one.key for own in records(source, topic).values() for one in own]
    read += read_some(cluster, topic, "billing", len(wanted) - len(read))
    assert sorted(read) == sorted(wanted)
    write(source, topic, 9_000, 4)
    copy(config, cluster)
    assert sorted(read_some(cluster, topic, "billing", 4)) == [b"9000 is seen", b"9001 is seen", b"9003", b"k9002"]


def assert_translated(source: TestCluster, target: TestCluster, topic: str, config: dict[str, str]) -> None:
    """Each position of the source is where its record is, and the end is behind the last one."""
    partitions = [TopicPartition(topic, number) for number in (0, 1)]
    syncs = f"{config['source.cluster.alias']}.offset-syncs"
    known = asyncio.run(read_histories(servers(target), syncs, partitions, 60_000, SystemClock()))
    with source.consumer(isolation_level="read_committed") as consumer:
        ends = consumer.end_offsets(partitions)
    copies = records(target, topic)
    for at in partitions:
        pairs = list(zip(records(source, topic)[at.partition], copies[at.partition], strict=True))
        assert known[at].copied == ends[at]
        for position in range(ends[at] + 1):
            behind = [copied.offset for original, copied in pairs if original.offset >= position]
            assert known[at].translate(position) == (behind[0] if behind else pairs[-1][1].offset + 1)


def test_topics_partitions_and_settings_follow(source: TestCluster, cluster: TestCluster) -> None:
    topic = source.unique_topic("shop", partitions=1, segment_ms="86400000", retention_ms=FOR_EVER)
    config = mirror(source, f"{topic}.*", topic_prefix="eu.")
    write(source, topic, 0)
    copy(config, cluster)
    with source.admin() as admin:
        admin.add_partitions(topic, 3)
        admin.alter_configs({"segment.ms": None, "segment.bytes": 1 << 20}, topic=topic)
        admin.create_topic(f"{topic}.more", 2)
    with source.producer() as producer:
        producer.send(topic, b"of a new partition", partition=2).result(30)
        producer.send(f"{topic}.more", b"of a new topic", partition=1).result(30)
    copy(config, cluster)
    with cluster.admin() as admin:
        described = admin.describe_topic(f"eu.{topic}")
    assert (len(described.partitions), dict(described.configs)) == (
        3,
        {"retention.ms": "-1", "segment.bytes": str(1 << 20)},
    )
    for name in (topic, f"{topic}.more"):
        assert contents(cluster, f"eu.{name}") == contents(source, name)


def test_what_is_gone_is_told(source: TestCluster, cluster: TestCluster) -> None:
    topic = source.unique_topic("short", retention_ms=FOR_EVER)
    config = mirror(source, topic)
    tolerant = config | {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{topic}-gone"}
    write(source, topic, 0)
    copy(config, cluster)
    write(source, topic, 100)
    with source.admin() as admin:
        [start] = admin.delete_records({(topic, 0): -1}).values()
    write(source, topic, 200)
    with pytest.raises(TaskFailed, match=f"the log holds {start} to .*errors.tolerance=all"):
        copy(config, cluster)
    copy(tolerant, cluster)
    with source.admin() as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    with source.producer() as producer:
        producer.send(topic, b"of the new topic").result(30)
    with pytest.raises(TaskFailed, match="deleted at the source and made again"):
        copy(config, cluster)
    copy(tolerant, cluster)
    copied = records(cluster, topic)[0]
    assert len(copied) == 40 + 40 + 1
    gone = [json.loads(one.value) for one in records(cluster, f"{topic}-gone")[0]]
    assert [(one["topic"], one["to"]) for one in gone] == [(topic, start), (topic, None)]
    with source.admin() as admin:
        admin.delete_topic(topic)
    with pytest.raises(TaskFailed, match=f"there is no topic {topic} at the source"):
        copy(config, cluster)


def test_looks_change_nothing(source: TestCluster, cluster: TestCluster, tmp_path: Path) -> None:
    topic = source.unique_topic("looks", partitions=2, retention_ms=FOR_EVER)
    write(source, topic, 0)
    config = mirror(source, topic)
    file = tmp_path / "mirror.json"

    def invoke(*words: str, **changes: str) -> Any:
        file.write_text(json.dumps(config | {name.replace("_", "."): value for name, value in changes.items()}))
        done = CliRunner().invoke(app, ["connect", *words, "-o", "json"])
        return json.loads(done.stdout)

    shown = invoke("preview", str(file), "--records", "5")["records"]
    assert [one["topic"] for one in shown] == [topic] * 5
    assert invoke("validate", str(file))["problems"] == []
    [missing] = invoke("validate", str(file), topics=topic[:-1] + "x")["problems"]
    assert f"is {topic} meant?" in missing["problem"]
    [away] = invoke("validate", str(file), source_cluster_bootstrap_servers="127.0.0.1:1", timeout_ms="1000")[
        "problems"
    ]
    assert away["problem"].startswith("source.cluster.bootstrap.servers: ")
    with cluster.admin() as admin:
        assert topic not in {one.name for one in admin.list_topics()}
    with pytest.raises(TaskFailed, match="the source is the target"):
        copy(config, source)


# --- what copying needs of a cluster ----------------------------------------------------------------------------------


class HeadraceSite(Site):
    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster

    def connect(self) -> SourceCluster:
        return SdkCluster(",".join(self.cluster.bootstrap_servers), 20, 2_000)

    def create(self, partitions: int = 1, **configs: str) -> str:
        return self.cluster.unique_topic("copied", partitions, **({"retention_ms": FOR_EVER} | configs))

    def write(self, topic: str, records: Sequence[Read], partition: int = 0, *, commits: bool | None = None) -> None:
        settings: dict[str, Any] = {} if commits is None else {"transactional_id": topic}
        with self.cluster.producer(**settings) as producer:
            if commits is not None:
                producer.init_transactions()
                producer.begin_transaction()
            for key, value, headers, timestamp_ms in records:
                producer.send(topic, value, key, headers, partition, timestamp_ms)
            producer.flush()
            if commits is not None:
                (producer.commit_transaction if commits else producer.abort_transaction)()

    def delete_below(self, topic: str, offset: int) -> None:
        with self.cluster.admin() as admin:
            admin.delete_records({(topic, 0): offset})

    def delete(self, topic: str) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topic(topic)

    def make_again(self, topic: str, partitions: int = 1) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, partitions, configs={"retention.ms": FOR_EVER})

    def commit(self, group: str, positions: dict[TopicPartition, int]) -> None:
        with self.cluster.admin() as admin:
            admin.reset_offsets(group, to_offset=dict(positions), execute=True)


class TestHeadrace(ClusterContract):
    @pytest.fixture
    def site(self, source: TestCluster) -> Site:
        return HeadraceSite(source)
