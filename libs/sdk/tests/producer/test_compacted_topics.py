"""Records without a key for a topic that is compacted: what becomes of them, and of what is sent around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

import headrace
from headrace.delivery import DeliveredBatch
from headrace.errors import InvalidPartitions, InvalidRecord


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread({"c": 1, "t": 1}, {"c": {"cleanup.policy": "compact"}})
    yield thread
    thread.stop()


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_batch_is_refused_once_with_what_to_do_and_the_others_arrive(
    broker: BrokerThread, idempotent: bool, codec: str
) -> None:
    told: list[DeliveredBatch] = []
    settings = {"enable_idempotence": idempotent, "compression_type": codec, "retry_backoff_ms": 1}
    with headrace.Producer(
        bootstrap_servers=broker.address, linger_ms=0, on_delivery=told.append, **settings
    ) as producer:
        assert producer.send("c", b"first", key=b"k").result(10).offset == 0
        deliveries = [producer.send("c", b"%d" % n, key=None if n == 7 else b"k") for n in range(20)]
        producer.flush(20)
        failed = [delivery for delivery in deliveries if delivery.exception() is not None]
        assert deliveries[7] in failed
        with pytest.raises(InvalidRecord, match=r"c-0: record .* has no key, and topic c is compacted: .*Send every"):
            deliveries[7].result(10)
        assert not InvalidRecord().retriable
        assert broker.broker.measures.refused_batches == 1, "it is not sent again"
        assert [batch.error is not None for batch in told].count(True) == 1
        assert producer.send("c", b"after", key=b"k").result(10).offset == 21 - len(failed)
        assert producer.send("t", b"keyless").result(10).offset == 0
    with headrace.Consumer("c", bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        while found[-1:] != [b"after"]:
            found += [record.value for record in consumer.poll(timeout_ms=1_000)]
    lost = {deliveries.index(delivery) for delivery in failed}
    assert found == [b"first", *(b"%d" % n for n in range(20) if n not in lost), b"after"], "in order, each once"


def test_deliveries_of_a_table_tell_that_one_of_its_batches_failed(broker: BrokerThread) -> None:
    rows = pa.table({"key": pa.array([b"k"] * 50 + [None] * 3), "value": pa.array([b"v"] * 53)})
    with headrace.Producer(bootstrap_servers=broker.address, linger_ms=0, batch_size=100) as producer:
        good = producer.send_table("c", rows.slice(0, 50))
        producer.flush(20)
        assert good.failure() is None
        bad = producer.send_table("c", rows)
        producer.flush(20)
        assert isinstance(bad.failure(), InvalidRecord)
        assert good.failure() is None


def test_deliveries_tell_why_they_were_sent_nowhere(broker: BrokerThread) -> None:
    @headrace.bulk_partitioner
    def partitioner(topic: str, keys: Sequence[bytes | None], partitions: int) -> list[int]:
        return [partitions] * len(keys)

    with headrace.Producer(bootstrap_servers=broker.address, partitioner=partitioner) as producer:
        sent = producer.send_table("t", pa.table({"value": pa.array([b"v"] * 3)}))
        producer.flush(20)
        assert isinstance(sent.failure(), InvalidPartitions)
