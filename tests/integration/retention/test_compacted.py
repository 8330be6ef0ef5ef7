"""A compacted topic end to end: the last value of each key stays, deletions go in time, keyless records are refused."""

from __future__ import annotations

import pytest
from retention_looks import logs, until

from headrace import TopicPartition
from headrace.errors import InvalidRecord
from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
EAGER = {"min_cleanable_dirty_ratio": "0.01", "segment_bytes": "4096", "segment_ms": "500"}
KEYS = 20


def read(cluster: TestCluster, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of everything that is left."""
    zero = TopicPartition(topic, 0)
    with cluster.consumer() as consumer:
        consumer.assign([zero])
        consumer.seek_to_beginning(zero)
        end = consumer.end_offsets([zero])[zero]
        found = []
        while consumer.position(zero) < end:
            found += [(record.offset, record.key, record.value) for record in consumer.poll(1_000)]
        return found


def put(cluster: TestCluster, topic: str, rounds: range, *, keys: int = KEYS) -> None:
    with cluster.producer(linger_ms=5) as producer:
        for number in rounds:
            deliveries = [
                producer.send(topic, b"%d" % number + b"." * 200, key=b"key-%d" % key, partition=0)
                for key in range(keys)
            ]
            for delivery in deliveries:
                delivery.result(30)


def test_the_last_value_of_each_key_stays_and_a_deletion_goes_after_its_time(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(cleanup_policy="compact", delete_retention_ms="2000", **EAGER)
    put(cluster, topic, range(30))
    with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
        producer.send(topic, None, key=b"key-0", partition=0).result(30)
        last = {b"key-%d" % key: b"29" + b"." * 200 for key in range(1, KEYS)}

        def compacted() -> bool:
            producer.send(topic, b"now", key=b"tick", partition=0).result(30)  # what is written last is not compacted
            found = read(cluster, topic)
            values = {key: value for _, key, value in found}
            assert {key: values[key] for key in last} == last, "at any time a reader sees the last value of each"
            assert values.get(b"key-0") is None, "and what was deleted as deleted"
            offsets = [offset for offset, _, _ in found]
            assert offsets == sorted(set(offsets))
            return b"key-0" not in values and len(found) < 4 * KEYS

        until(compacted, "the deletion is gone, and nearly all that was replaced")
        assert all(log.compaction is not None and not log.compaction.stuck for log in logs(admin, topic))
        until(
            lambda: all(log.compaction is not None and log.compaction.cleaned_to > 0 for log in logs(admin, topic)),
            "every replica compacts",
        )


def test_a_record_without_a_key_is_refused_and_the_others_arrive(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(cleanup_policy="compact")
    with cluster.producer(linger_ms=0) as producer:
        producer.send(topic, b"1", key=b"a").result(30)
        with pytest.raises(InvalidRecord, match="key"):
            producer.send(topic, b"2").result(30)
        producer.send(topic, b"3", key=b"b").result(30)
    assert [(key, value) for _, key, value in read(cluster, topic)] == [(b"a", b"1"), (b"b", b"3")]


def test_both_policies_keep_the_last_values_of_what_is_young(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(cleanup_policy="compact,delete", retention_ms="3000", **EAGER)
    put(cluster, topic, range(10))
    with cluster.admin() as admin:
        until(lambda: min(log.log_start_offset for log in logs(admin, topic)) >= 10 * KEYS, "all of that is old")
        put(cluster, topic, range(10, 12), keys=3)
        values = {key: value for _, key, value in read(cluster, topic)}
        assert values == {b"key-%d" % key: b"11" + b"." * 200 for key in range(3)}
