"""The sync consumer against a real broker."""

from __future__ import annotations

import json
import time

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

import headrace
from headrace import TopicPartition, errors
from headrace.errors import NoGroup, NoPosition

ONE = TopicPartition("one", 0)


def open_consumer(broker: BrokerThread, *topics: str, **settings: object) -> headrace.Consumer:
    given = {"auto_offset_reset": "earliest"} | settings
    return headrace.Consumer(*topics, bootstrap_servers=broker.address, **given)


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


def read(consumer: headrace.Consumer, count: int) -> list[headrace.Record]:
    """Poll until there are ``count``; the test's own timeout bounds it."""
    records: list[headrace.Record] = []
    while len(records) < count:
        records += consumer.poll(timeout_ms=1000, max_records=count - len(records))
    return records


def test_a_record_comes_back_as_it_was_written(broker: BrokerThread) -> None:
    broker.append(
        "one", 0, [b"v", None], keys=[b"k", None], headers=[[("a", b"1"), ("b", None)], []], timestamps_ms=[5, 6]
    )
    with open_consumer(broker, "one") as consumer:
        first, second = read(consumer, 2)
    assert first == headrace.Record(
        "one", 0, 0, b"k", b"v", [("a", b"1"), ("b", None)], 5, headrace.TimestampType.CREATE_TIME, 0
    )
    assert (second.key, second.value, list(second.headers), second.timestamp_ms) == (None, None, [], 6)
    assert isinstance(first, headrace.Record)


def test_row_batches_read_like_columns(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 3), keys=[b"a", None, b"c"], rows=True)
    with open_consumer(broker, "one") as consumer:
        assert [(r.offset, r.key, r.value) for r in read(consumer, 3)] == [
            (0, b"a", b"0"),
            (1, None, b"1"),
            (2, b"c", b"2"),
        ]


def test_poll_returns_no_more_than_it_was_asked_for_and_positions_follow(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 1200))
    with open_consumer(broker, "one") as consumer:
        assert len(consumer.poll(timeout_ms=10_000)) == 500
        assert consumer.position(ONE) == 500
        assert [r.offset for r in consumer.poll(max_records=3)] == [500, 501, 502]
        assert consumer.position(ONE) == 503
        assert len(consumer.poll(max_records=10_000)) == 697
        assert consumer.poll(timeout_ms=0) == []
        assert consumer.lag() == {ONE: 0}


def test_iteration_can_be_left_and_taken_up_anywhere(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 100))
    with open_consumer(broker, "one") as consumer:
        for record in consumer:
            if record.offset == 41:
                break
        assert consumer.position(ONE) == 42
        assert [r.offset for r in consumer.poll(max_records=2)] == [42, 43]
        for record in consumer:
            assert record.offset == 44
            break
        assert consumer.poll_table(max_records=2)["offset"].to_pylist() == [45, 46]
        assert next(iter(consumer)).offset == 47
        consumer.seek(ONE, 7)
        assert next(iter(consumer)).offset == 7


def test_a_seek_inside_a_loop_takes_effect_at_once(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 100))
    seen = []
    with open_consumer(broker, "one") as consumer:
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1]:
                consumer.seek(ONE, 90)
            if record.offset == 91:
                break
    assert seen == [0, 1, 90, 91]


def test_a_pause_inside_a_loop_keeps_the_rest(broker: BrokerThread) -> None:
    for partition in (0, 1):
        broker.append("t", partition, numbered(0, 5))
    seen: list[tuple[int, int]] = []
    with open_consumer(broker, "t") as consumer:
        read_first = iter(consumer)
        first = next(read_first)
        other = 1 - first.partition
        consumer.pause(("t", first.partition))
        assert consumer.paused() == {TopicPartition("t", first.partition)}
        seen = [(r.partition, r.offset) for r in read(consumer, 5)]
        assert seen == [(other, n) for n in range(5)]
        assert consumer.poll(timeout_ms=50) == []
        consumer.resume(("t", first.partition))
        assert [(r.partition, r.offset) for r in read(consumer, 4)] == [(first.partition, n) for n in range(1, 5)]


def test_poll_table_has_all_columns_and_no_copies_of_values(broker: BrokerThread) -> None:
    import pyarrow as pa

    broker.append("t", 0, numbered(0, 10), keys=[b"k"] * 10, headers=[[("h", b"x")]] * 10, timestamps_ms=7)
    broker.append("t", 1, numbered(0, 10), timestamps_ms=8)
    with open_consumer(broker, "t") as consumer:
        tables = []
        while sum(map(len, tables)) < 20:
            tables.append(consumer.poll_table(timeout_ms=1000))
        table = pa.concat_tables(tables)
        assert table.schema.names == [
            "topic",
            "partition",
            "offset",
            "timestamp_ms",
            "key",
            "value",
            "headers",
            "timestamp_type",
        ]
        assert consumer.poll_table(timeout_ms=0).schema == table.schema
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    assert rows[3] == {
        "topic": "t", "partition": 0, "offset": 3, "timestamp_ms": 7, "key": b"k", "value": b"3",
        "headers": [{"key": "h", "value": b"x"}], "timestamp_type": 0,
    }  # fmt: skip
    assert rows[13] | {"headers": None} == {
        "topic": "t", "partition": 1, "offset": 3, "timestamp_ms": 8, "key": None, "value": b"3", "headers": None,
        "timestamp_type": 0,
    }  # fmt: skip
    assert {row["topic"] for row in rows} == {"t"}


def test_offsets_by_position_and_by_time(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 3), timestamps_ms=[1000, 2000, 3000])
    with open_consumer(broker, "one") as consumer:
        assert consumer.beginning_offsets([ONE]) == {ONE: 0}
        assert consumer.end_offsets([ONE]) == {ONE: 3}
        assert consumer.end_offsets([("t", 1)]) == {TopicPartition("t", 1): 0}, "need not be assigned"
        found = consumer.offsets_for_times({ONE: 1500})
        assert (found[ONE].offset, found[ONE].timestamp_ms) == (1, 2000)
        assert consumer.offsets_for_times({ONE: 3001}) == {ONE: None}
        consumer.seek_to_timestamp(2500)
        assert [r.offset for r in read(consumer, 1)] == [2]
        consumer.seek_to_beginning(ONE)
        assert consumer.position(ONE) == 0
        consumer.seek_to_end()
        assert consumer.position(ONE) == 3
        consumer.seek_to_timestamp(9999, ONE)
        assert consumer.position(ONE) == 3, "nothing is that young"
        with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 9"):
            consumer.end_offsets([("one", 9)])


def test_what_is_assigned(broker: BrokerThread) -> None:
    with open_consumer(broker, "t") as consumer:
        assert consumer.subscription() == {"t"}
        assert consumer.assignment() == {TopicPartition("t", 0), TopicPartition("t", 1)}
        assert consumer.partitions_for("wide") == set(range(20))
        consumer.assign([ONE])
        assert consumer.assignment() == {ONE}
        assert consumer.subscription() == set()
        broker.append("one", 0, [b"x"])
        assert len(read(consumer, 1)) == 1
        with pytest.raises(errors.Rejected, match="not read by this consumer"):
            consumer.seek(("t", 0), 0)
        with pytest.raises(errors.UnknownTopicOrPartition):
            consumer.assign([("one", 1)])
        assert consumer.assignment() == {ONE}, "a refused assignment changes nothing"


def test_latest_means_from_now_on(broker: BrokerThread) -> None:
    broker.append("one", 0, [b"old"])
    with open_consumer(broker, "one", auto_offset_reset="latest") as consumer:
        assert consumer.position(ONE) == 1
        broker.append("one", 0, [b"new"])
        assert [r.value for r in read(consumer, 1)] == [b"new"]


def test_a_duration_counts_back_from_now(broker: BrokerThread) -> None:
    now_ms = time.time_ns() // 1_000_000
    ages_ms = [7_200_000, 3_000_000, 1000]
    broker.append("one", 0, numbered(0, 3), timestamps_ms=[now_ms - age for age in ages_ms])
    with open_consumer(broker, "one", auto_offset_reset="by_duration:PT1H") as consumer:
        assert consumer.position(ONE) == 1
    with open_consumer(broker, "one", auto_offset_reset="by_duration:PT0.5S") as consumer:
        assert consumer.position(ONE) == 3, "nothing is that young"


def test_partitions_added_later_are_read_from_their_beginning(broker: BrokerThread) -> None:
    with open_consumer(broker, "t", auto_offset_reset="latest", metadata_max_age_ms=100) as consumer:
        assert len(consumer.assignment()) == 2
        broker.show({"t": 3})
        broker.append("t", 2, [b"first"])
        assert [(r.partition, r.value) for r in read(consumer, 1)] == [(2, b"first")]


def test_a_trimmed_range_is_skipped_and_told(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    broker.append("one", 0, numbered(0, 5))
    broker.append("one", 0, numbered(5, 10))
    broker.trim("one", 0, 5)
    with open_consumer(broker, "one") as consumer:
        consumer.seek(ONE, 1)
        assert [r.offset for r in read(consumer, 5)] == [5, 6, 7, 8, 9]
        assert consumer.health().resets == 1
    assert "records 1 to 4 were not read" in caplog.text


def test_without_a_reset_rule_what_is_missing_is_raised(broker: BrokerThread) -> None:
    broker.append("one", 0, numbered(0, 5))
    with open_consumer(broker, "one", auto_offset_reset="none") as consumer:
        with pytest.raises(NoPosition, match="one-0"):
            consumer.poll()
        consumer.seek(ONE, 99)
        with pytest.raises(errors.OffsetOutOfRange, match="the log holds 0 to 4"):
            consumer.poll(timeout_ms=10_000)
        consumer.seek(ONE, 3)
        assert [r.offset for r in read(consumer, 2)] == [3, 4]


def test_deserializers_are_applied_and_missing_values_stay_missing(broker: BrokerThread) -> None:
    broker.append("one", 0, [b'{"n": 1}', None], keys=["ä".encode(), None])
    with open_consumer(broker, "one", key_deserializer="str", value_deserializer=json.loads) as consumer:
        assert [(r.key, r.value) for r in read(consumer, 2)] == [("ä", {"n": 1}), (None, None)]


def test_a_record_that_cannot_be_deserialized_is_named_after_those_before_it(broker: BrokerThread) -> None:
    broker.append("one", 0, [b"1", b"2", b"{", b"4"])
    with open_consumer(broker, "one", value_deserializer="json") as consumer:
        assert [r.value for r in read(consumer, 2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(errors.SerializationFailed, match=r"one-0@2: .*seek to 3") as caught:
                consumer.poll(timeout_ms=10_000)
            assert isinstance(caught.value.__cause__, json.JSONDecodeError)
        consumer.seek(ONE, 3)
        assert [r.value for r in read(consumer, 1)] == [4]


def test_a_topic_that_does_not_exist_is_an_error(broker: BrokerThread) -> None:
    with open_consumer(broker, "nowhere") as consumer, pytest.raises(errors.UnknownTopicOrPartition, match="nowhere"):
        consumer.poll()


def test_a_cluster_that_is_not_there_is_an_error_after_the_timeout() -> None:
    consumer = headrace.Consumer("t", bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=300)
    with consumer, pytest.raises(errors.NetworkFailed, match=r"127\.0\.0\.1:1"):
        consumer.poll()


def test_a_broker_that_goes_away_for_good_is_raised_from_iteration() -> None:
    broker = BrokerThread({"one": 1})
    with open_consumer(broker, "one", default_api_timeout_ms=400) as consumer:
        broker.append("one", 0, [b"x"])
        records = iter(consumer)
        assert next(records).value == b"x"
        broker.stop()
        with pytest.raises(errors.HeadraceError, match="one-0 could not be read for"):
            next(records)
        assert consumer.state == "stuck"
        assert ONE in consumer.health().troubled


def test_what_needs_a_group_says_so(broker: BrokerThread) -> None:
    with open_consumer(broker, "t") as consumer:
        for call in (
            consumer.commit,
            consumer.commit_async,
            lambda: consumer.committed([ONE]),
            lambda: consumer.subscribe(pattern="t.*"),
            lambda: consumer.subscribe(["t"], on_assign=print),
        ):
            with pytest.raises(NoGroup, match="make the consumer with a group_id"):
                call()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"auto_offset_reset": "smallest"}, "by_duration:PT1H"),
        ({"isolation_level": "serializable"}, "takes read_uncommitted, read_committed, not 'serializable'"),
        ({"max_poll_record": 1}, "max_poll_records"),
        ({"fetch_max_bytes": 0}, "fetch_max_bytes"),
        ({"value_deserializer": "xml"}, "value_deserializer: 'xml'.* json"),
        ({"max_poll_records": True}, "max_poll_records"),
    ],
)
def test_settings_that_are_wrong_are_named(settings: dict[str, object], text: str) -> None:
    with pytest.raises(errors.InvalidConfig, match=text):
        headrace.Consumer("t", **settings)


def test_after_close_every_call_says_so(broker: BrokerThread) -> None:
    consumer = open_consumer(broker, "t")
    consumer.poll(timeout_ms=0)
    records = iter(consumer)
    consumer.close()
    consumer.close()
    assert consumer.state == "closed"
    assert not consumer.health().ok
    polls = (consumer.poll, consumer.poll_table, consumer.poll_batches)
    for call in (*polls, consumer.assignment, lambda: next(records), consumer.lag):
        with pytest.raises(errors.ClientClosed):
            call()


def test_many_partitions_are_all_read_with_small_bounds(broker: BrokerThread) -> None:
    for partition in range(20):
        for start in range(0, 40, 10):
            broker.append("wide", partition, numbered(start, start + 10))
    with open_consumer(broker, "wide", fetch_max_bytes=2000, max_partition_fetch_bytes=500) as consumer:
        records = read(consumer, 800)
        assert consumer.poll(timeout_ms=20) == []
    by_partition: dict[int, list[int]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record.offset)
    assert by_partition == {partition: list(range(40)) for partition in range(20)}


def test_a_fetch_that_waits_at_the_broker_keeps_nobody_who_comes_late(broker: BrokerThread) -> None:
    broker.append("t", 1, numbered(0, 3))
    with open_consumer(broker, "t", fetch_max_wait_ms=300_000) as consumer:
        consumer.pause(("t", 1))
        assert consumer.poll(timeout_ms=100) == []
        consumer.resume(("t", 1))
        assert [r.offset for r in read(consumer, 3)] == [0, 1, 2]
        consumer.seek(("t", 1), 1)
        assert [r.offset for r in read(consumer, 2)] == [1, 2]
        consumer.assign([ONE])
        broker.append("one", 0, [b"x"])
        assert [r.value for r in read(consumer, 1)] == [b"x"]
        assert consumer.health().ok
