"""What the tests of committed reads share: a hand that writes transactions batch by batch, beside others."""

from __future__ import annotations

from libs.sdk.tests.kit.cluster import LabCluster

from headrace import Producer, TopicPartition
from headrace.group_types import ConsumerGroupMetadata
from headrace.records import Committed
from headrace_common.core.batch import RecordColumns, build_batch


class TransactionalHand:
    """One transactional producer; each call writes one batch, and the end writes the markers."""

    def __init__(self, cluster: LabCluster, number: int, topic: str = "t") -> None:
        self.cluster = cluster
        self.topic = topic
        self._producer: Producer = cluster.producer(transactional_id=f"hand-{number}", linger_ms=0)
        self._open = False
        cluster.own(self._producer)

    def write(self, *values: bytes, partition: int = 0, timestamp_ms: int = 1000) -> None:
        """One batch in the transaction, which begins with the first."""
        self._begin()
        count = len(values)
        sent = self._producer.send_many(
            self.topic, list(values), partition=[partition] * count, timestamps_ms=[timestamp_ms] * count
        )
        sent.result(10)

    def hold_offset(self, group: str | ConsumerGroupMetadata, tp: TopicPartition, at: int | Committed) -> None:
        """A position that counts when the transaction is committed."""
        self._begin()
        self._producer.send_offsets_to_transaction({tp: at}, group)

    def end(self, *, commit: bool) -> None:
        """Markers everywhere, which are there when this returns."""
        self._open = False
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)()
        self.cluster.committed_values(self.topic)

    def _begin(self) -> None:
        if not self._open:
            self._open = True
            self._producer.begin_transaction()


def plain(cluster: LabCluster, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    """A batch outside of any transaction."""
    cluster.append(topic, partition, build_batch(RecordColumns(values=list(values), timestamps_ms=1000)))
