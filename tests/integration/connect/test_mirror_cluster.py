"""The cluster that ``mirror`` copies does what copying needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from libs.connect.tests.connectors.copying.contract import ClusterContract, Read, Site

from headrace.records import TopicPartition
from headrace.testing import TestCluster
from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.mirror.cluster import SdkCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class HeadraceSite(Site):
    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster

    def connect(self) -> SourceCluster:
        return SdkCluster(",".join(self.cluster.bootstrap_servers), 20, 2_000)

    def create(self, partitions: int = 1, **configs: str) -> str:
        return self.cluster.unique_topic("copied", partitions, **configs)

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
            admin.create_topic(topic, partitions)

    def commit(self, group: str, positions: dict[TopicPartition, int]) -> None:
        with self.cluster.admin() as admin:
            admin.reset_offsets(group, to_offset=dict(positions), execute=True)


class TestHeadrace(ClusterContract):
    @pytest.fixture
    def site(self, cluster: TestCluster) -> Site:
        return HeadraceSite(cluster)
