"""The admin client against a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace
from headrace import TopicPartition, aio, errors
from headrace.admin import HIGH_WATERMARK, NewTopic
from headrace.testing import TestCluster

pytestmark = pytest.mark.integration


@pytest.fixture
def admin(headrace_cluster: TestCluster) -> Iterator[headrace.AdminClient]:
    with headrace_cluster.admin() as client:
        yield client


def test_a_topic_lives_from_creation_to_deletion(admin: headrace.AdminClient) -> None:
    created = admin.create_topic("life", 3, configs={"retention.ms": "100000"})
    assert [p.partition for p in created.partitions] == [0, 1, 2]
    assert all(p.leader is not None and p.leader in p.isr for p in created.partitions)
    described = admin.describe_topic("life")
    assert (described.topic_id, described.partitions) == (created.topic_id, created.partitions)
    assert described.configs == {"retention.ms": "100000"}
    assert {t.name: t.partitions for t in admin.list_topics()}["life"] == 3
    with pytest.raises(errors.TopicAlreadyExists):
        admin.create_topic("life")
    again = admin.create_topic("life", 9, if_not_exists=True)
    assert (again.topic_id, len(again.partitions)) == (created.topic_id, 3), "it is as it was"
    assert len(admin.add_partitions("life", 5).partitions) == 5
    with pytest.raises(errors.InvalidPartitions):
        admin.add_partitions("life", 4)
    admin.delete_topic("life")
    assert "life" not in {t.name for t in admin.list_topics()}
    with pytest.raises(errors.UnknownTopicOrPartition):
        admin.describe_topic("life")
    with pytest.raises(errors.UnknownTopicOrPartition):
        admin.delete_topic("life")
    assert admin.create_topic("life").topic_id != created.topic_id


def test_validate_only_makes_nothing(admin: headrace.AdminClient) -> None:
    would_be = admin.create_topic("maybe", 2, validate_only=True)
    assert len(would_be.partitions) == 2
    assert "maybe" not in {t.name for t in admin.list_topics()}


def test_several_topics_succeed_and_fail_by_themselves(admin: headrace.AdminClient) -> None:
    results = admin.create_topics([NewTopic("several-1"), NewTopic("several-2", replication_factor=99)])
    assert not isinstance(results["several-1"], errors.HeadraceError)
    assert isinstance(results["several-2"], errors.InvalidReplicationFactor)
    with pytest.raises(errors.InvalidTopic):
        admin.create_topic("no/slashes")


def test_settings_are_read_and_changed(admin: headrace.AdminClient) -> None:
    admin.create_topic("settings")
    assert admin.describe_configs(topic="settings")["retention.ms"].source == "default"
    after = admin.alter_configs({"retention.ms": 5_000_000, "max.message.bytes": "2000"}, topic="settings")
    assert (after["retention.ms"].value, after["retention.ms"].source) == ("5000000", "dynamic_topic")
    after = admin.alter_configs({"retention.ms": None}, topic="settings")
    assert after["retention.ms"].source == "default"
    assert admin.describe_configs(topic="settings")["max.message.bytes"].value == "2000"
    with pytest.raises(errors.InvalidConfig, match="bogus"):
        admin.alter_configs({"bogus": "1", "retention.ms": 1}, topic="settings")
    assert admin.describe_configs(topic="settings")["retention.ms"].source == "default", "all of them or none"
    with pytest.raises(errors.Rejected, match="not both"):
        admin.describe_configs(topic="settings", broker=1)
    before = admin.describe_configs()["num.partitions"].value
    admin.alter_configs({"num.partitions": 4}, validate_only=True)
    assert admin.describe_configs()["num.partitions"].value == before
    assert admin.describe_configs(broker=1)["broker.session.timeout.ms"].read_only


def test_the_cluster_and_its_brokers(admin: headrace.AdminClient) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller_id == 1
    assert cluster.metadata_store_reachable
    [broker] = admin.list_brokers()
    assert admin.describe_broker(broker.id) == broker
    assert not broker.fenced
    with pytest.raises(errors.NotFound, match="no broker 77 is registered; `headrace broker list`"):
        admin.describe_broker(77)


def test_records_are_trimmed_and_logs_described(admin: headrace.AdminClient, headrace_cluster: TestCluster) -> None:
    topic = headrace_cluster.unique_topic(partitions=2)
    with headrace_cluster.producer() as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush(10)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.delete_records({zero: 40}) == {zero: 40}
    with headrace_cluster.consumer(topic) as consumer:
        assert consumer.beginning_offsets([zero]) == {zero: 40}
        assert consumer.poll(timeout_ms=10_000)[0].offset == 40
    assert admin.delete_records({zero: HIGH_WATERMARK, one: 0}) == {zero: 100, one: 0}
    with pytest.raises(errors.OffsetOutOfRange):
        admin.delete_records({zero: 101})
    [of_broker] = admin.describe_logs(topics=[topic], segments=True)
    assert of_broker.error is None
    logs = {log.partition: log for log in of_broker.logs}
    assert (logs[0].log_start_offset, logs[0].log_end_offset, logs[0].state) == (100, 100, "online")
    assert logs[0].segments
    assert of_broker.disk_total_bytes > of_broker.disk_free_bytes > 0


async def test_the_same_with_asyncio(headrace_cluster: TestCluster) -> None:
    async with aio.AdminClient(headrace_cluster.bootstrap_servers) as admin:
        await admin.create_topic("with-asyncio", 2)
        assert (await admin.describe_topic("with-asyncio")).name == "with-asyncio"
        await admin.delete_topic("with-asyncio")
    with pytest.raises(errors.ClientClosed):
        await admin.list_topics()


def test_without_a_cluster_it_is_an_error_after_the_timeout() -> None:
    admin = headrace.AdminClient("127.0.0.1:1", default_api_timeout_ms=300)
    with admin, pytest.raises(errors.NetworkFailed, match=r"127\.0\.0\.1:1"):
        admin.list_topics()
    with pytest.raises(errors.ClientClosed):
        admin.list_topics()
