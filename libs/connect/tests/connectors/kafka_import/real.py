"""Topics of a real Kafka."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import confluent_kafka as kafka
from libs.connect.tests.connectors.copying.contract import Read, Site
from libs.connect.tests.connectors.kafka_import.settings import made

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.kafka_import.asking import kafka_admin
from headrace_connect.connectors.kafka_import.cluster import KafkaCluster

FOR_EVER: Final = {"retention.ms": "-1"}
"""Of topics whose times are of years ago: else Kafka deletes their records while a test runs."""
_LIMIT_S: Final = 60.0
_NUMBERS: Final = count(1)


class RealSite(Site):
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = kafka_admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def connect(self) -> SourceCluster:
        return KafkaCluster(made(self.bootstrap, batch_max_rows=20, timeout_ms=10_000))

    def create(self, partitions: int = 1, **configs: str) -> str:
        topic = f"copied-{os.getpid()}-{next(_NUMBERS)}"
        self.create_named(topic, partitions, FOR_EVER | configs)
        return topic

    def create_named(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        _done(self.admin.create_topics([kafka_admin.NewTopic(topic, partitions, 1, config=dict(configs))]))
        _until(lambda: all(part.leader >= 0 for part in self._partitions(topic)) and bool(self._partitions(topic)))

    def _partitions(self, topic: str) -> list[Any]:
        return list(self.admin.list_topics(topic, _LIMIT_S).topics[topic].partitions.values())

    def write(self, topic: str, records: Sequence[Read], partition: int = 0, *, commits: bool | None = None) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 0}
        producer = kafka.Producer(settings if commits is None else settings | {"transactional.id": topic})
        if commits is not None:
            producer.init_transactions(_LIMIT_S)
            producer.begin_transaction()
        for key, value, headers, timestamp_ms in records:
            producer.produce(topic, value, key, partition, headers=headers, timestamp=timestamp_ms)
        assert producer.flush(_LIMIT_S) == 0
        if commits is not None:
            (producer.commit_transaction if commits else producer.abort_transaction)(_LIMIT_S)
            at = kafka.TopicPartition(topic, partition)  # Kafka writes its markers a moment later
            _until(lambda: len({self._end(at, level) for level in kafka.IsolationLevel}) == 1)

    def _end(self, at: kafka.TopicPartition, level: kafka.IsolationLevel) -> int:
        [future] = self.admin.list_offsets({at: kafka_admin.OffsetSpec.latest()}, isolation_level=level).values()
        return int(future.result(_LIMIT_S).offset)

    def delete_below(self, topic: str, offset: int) -> None:
        _done(self.admin.delete_records([kafka.TopicPartition(topic, 0, offset)]))

    def delete(self, topic: str) -> None:
        _done(self.admin.delete_topics([topic]))
        _until(lambda: topic not in self.admin.list_topics(timeout=_LIMIT_S).topics)

    def make_again(self, topic: str, partitions: int = 1) -> None:
        self.delete(topic)
        self.create_named(topic, partitions, FOR_EVER)

    def commit(self, group: str, positions: dict[TopicPartition, int]) -> None:
        asked = [kafka.TopicPartition(at.topic, at.partition, offset) for at, offset in positions.items()]
        _done(self.admin.alter_consumer_group_offsets([kafka.ConsumerGroupTopicPartitions(group, asked)]))


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(_LIMIT_S)


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < until, "Kafka does not do it"
        time.sleep(0.05)
