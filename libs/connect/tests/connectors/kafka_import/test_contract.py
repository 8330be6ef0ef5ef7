"""What copying needs of a cluster, of a twin of Kafka that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from libs.connect.tests.connectors.copying.contract import ClusterContract, Read, Site
from libs.connect.tests.connectors.kafka_import.settings import made
from libs.connect.tests.connectors.kafka_import.twin import Broker, Log, Topic

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.kafka_import.cluster import KafkaCluster


class TwinSite(Site):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.state = broker.state

    def connect(self) -> SourceCluster:
        return KafkaCluster(made(self.broker.bootstrap, batch_max_rows=20, timeout_ms=10_000))

    def create(self, partitions: int = 1, **configs: str) -> str:
        name = f"copied-{len(self.state.topics)}"
        with self.state.changing():
            self.state.topics[name] = Topic([Log() for _ in range(partitions)], configs)
        return name

    def write(self, topic: str, records: Sequence[Read], partition: int = 0, *, commits: bool | None = None) -> None:
        with self.state.changing():
            self.state.topics[topic].logs[partition].write(list(records), commits)

    def delete_below(self, topic: str, offset: int) -> None:
        with self.state.changing():
            self.state.topics[topic].logs[0].delete_below(offset)

    def delete(self, topic: str) -> None:
        with self.state.changing():
            del self.state.topics[topic]

    def make_again(self, topic: str, partitions: int = 1) -> None:
        with self.state.changing():
            self.state.topics[topic] = Topic([Log() for _ in range(partitions)])

    def commit(self, group: str, positions: dict[TopicPartition, int]) -> None:
        with self.state.changing():
            self.state.groups[group] = {(at.topic, at.partition): offset for at, offset in positions.items()}


class TestTwin(ClusterContract):
    @pytest.fixture
    def site(self) -> Iterator[Site]:
        with Broker() as broker:
            yield TwinSite(broker)
