"""Records go by age, by size and by command, on every replica; readers below hear what they lost; space comes back."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from retention_looks import logs, starts, until, used_bytes, within, write

from headrace import PositionReset, TopicPartition
from headrace.admin import HIGH_WATERMARK
from headrace.errors import PositionOutOfRange
from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_records_go_by_age_and_a_reader_hears_which_ones_it_missed(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(retention_ms="1000", segment_bytes="4096")
    zero, told = TopicPartition(topic, 0), list[PositionReset]()
    with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
        write(producer, topic, 12)
        until(lambda: starts(admin, topic) == [12] * 3, "all of it is old, on each replica")
        write(producer, topic, 1)
        with cluster.consumer(on_position_reset=told.append) as consumer:
            consumer.assign([zero])
            consumer.seek(zero, 3)
            admin.alter_configs({"retention.ms": "600000"}, topic=topic)
            write(producer, topic, 2)
            got = [record.offset for record in consumer.poll(20_000)]
            assert got[0] >= 12
        assert [(one.partition, one.gone.start) for one in told] == [(zero, 3)]
        assert 12 <= told[0].gone.stop <= 13
        with cluster.consumer(auto_offset_reset="none") as strict:
            strict.assign([zero])
            strict.seek(zero, 5)
            with pytest.raises(PositionOutOfRange) as refused:
                strict.poll(20_000)
        assert refused.value.gone == range(5, refused.value.log_start)


def test_records_go_by_size_and_settings_changed_meanwhile_are_those_of_the_next_look(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(retention_ms="-1", segment_bytes="4096")
    with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
        write(producer, topic, 30)
        before = [len(log.segments) for log in logs(admin, topic, segments=True)]
        assert min(before) >= 8, "rolled by size"
        time.sleep(1.5)  # three looks
        assert starts(admin, topic) == [0] * 3, "no bound"
        admin.alter_configs({"retention.bytes": "10000"}, topic=topic)
        until(lambda: min(starts(admin, topic)) > 0, "the next look uses the new bound")
        until(lambda: len(set(starts(admin, topic))) == 1, "followers follow")
        kept = logs(admin, topic, segments=True)
        for log in kept:
            assert 10_000 <= log.size_bytes < 10_000 + 2 * 4_096
            assert sum(one.size_bytes for one in log.segments) == log.size_bytes
            assert [one.sealed_at_ms is None for one in log.segments].count(True) == 1
            edges = [(one.base_offset, one.end_offset) for one in log.segments]
            assert edges[0][0] <= log.log_start_offset
            assert all(end == base for (_, end), (base, _) in pairwise(edges))
        admin.alter_configs({"segment.ms": "500"}, topic=topic)
        active = max(one.base_offset for one in kept[0].segments)
        until(
            lambda: (
                all(max(s.base_offset for s in log.segments) > active for log in logs(admin, topic, segments=True))
                or write(producer, topic, 1) is not None
            ),
            "rolled by age: the leader by its clock, followers with the next record",
        )


def test_a_trim_moves_the_start_on_every_replica_and_lag_counts_what_is_left(cluster: TestCluster) -> None:
    topic = cluster.unique_topic()
    with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
        write(producer, topic, 20)
        with cluster.consumer(topic, group_id=f"g-{topic}") as consumer:
            assert consumer.poll(20_000, max_records=5)
            consumer.commit()
            assert admin.delete_records({(topic, 0): 13}) == {TopicPartition(topic, 0): 13}
            until(lambda: starts(admin, topic) == [13] * 3, "followers delete on their own")
            assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 20}
            assert consumer.beginning_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 13}
        assert admin.delete_records({(topic, 0): HIGH_WATERMARK}) == {TopicPartition(topic, 0): 20}
        until(lambda: starts(admin, topic) == [20] * 3, "all of it")
        write(producer, topic, 1)
        with cluster.consumer(topic) as consumer:
            assert [record.offset for record in consumer.poll(20_000)] == [20]


def test_a_deleted_topic_gives_its_space_back_while_another_is_written(cluster: TestCluster) -> None:
    large, other = cluster.unique_topic(), cluster.unique_topic()
    with cluster.producer(linger_ms=20) as producer, cluster.admin() as admin:
        for _ in range(10):
            write(producer, large, 800, each=False)
            write(producer, other, 20, each=False)
        size = sum(log.size_bytes for log in logs(admin, large))
        assert size > 3 * 8_000_000
        full = used_bytes(cluster)
        admin.delete_topic(large)

        def given_back() -> bool:
            write(producer, other, 20, each=False)
            return used_bytes(cluster) < full - size * 0.6

        until(given_back, f"{size} of {full} bytes were deleted")


def test_a_restart_of_all_brokers_keeps_where_logs_begin(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(retention_ms="-1", retention_bytes="10000", segment_bytes="4096")
    trimmed = cluster.unique_topic()
    with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
        write(producer, topic, 30)
        write(producer, trimmed, 10)
        admin.delete_records({(trimmed, 0): 7})
        until(lambda: within(admin, topic, 10_000), "retention has nothing more to do, on each of them")
        until(lambda: starts(admin, trimmed) == [7] * 3, "the trim")
        until(lambda: len(set(starts(admin, topic))) == 1, "followers follow")
        [start] = set(starts(admin, topic))
        assert start > 10
    for number in (1, 2, 3):
        cluster.local.kill(f"broker-{number}")
    for number in (1, 2, 3):
        cluster.local.restart(f"broker-{number}")
    cluster.local.wait_ready()
    with cluster.consumer() as consumer, cluster.admin() as admin:
        both = [TopicPartition(topic, 0), TopicPartition(trimmed, 0)]
        assert consumer.beginning_offsets(both) == {both[0]: start, both[1]: 7}
        assert consumer.end_offsets(both) == {both[0]: 30, both[1]: 10}
        until(lambda: starts(admin, topic) == [start] * 3, "on each of them")
