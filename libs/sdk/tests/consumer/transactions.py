"""What the tests of committed reads share: a hand that writes transactions into the logs of a cluster in memory."""

from __future__ import annotations

from libs.sdk.tests.twin.backend import MemoryBackend

from headrace import TopicPartition
from headrace_common.core.batch import RecordColumns, build_batch
from headrace_proto.v1 import coordinator_pb2 as group_pb


class TransactionalHand:
    """Writes as one transactional producer whose coordinator enrols, and drives markers, at once."""

    def __init__(self, memory: MemoryBackend, producer_id: int, topic: str = "t") -> None:
        self.cluster = memory.cluster
        self.topic = topic
        self.producer_id = producer_id
        self.epoch = 0
        self._next: dict[int, int] = {}

    def write(self, *values: bytes, partition: int = 0, timestamp_ms: int = 1000) -> None:
        """One batch in the open transaction."""
        first = self._next.get(partition, 0)
        batch = build_batch(
            RecordColumns(values=list(values), timestamps_ms=timestamp_ms),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
            transactional=True,
        )
        self._next[partition] = first + len(values)
        self.cluster.log(self.topic, partition).append(batch, leader_epoch=0)
        self._tell(partition)

    def hold_offset(self, group_id: str, tp: TopicPartition, offset: int) -> None:
        """A position that counts when the transaction is committed."""
        held = group_pb.CommittedOffset(topic=tp.topic, partition=tp.partition, offset=offset, leader_epoch=0)
        self.cluster.groups.pending.add(group_id, self.producer_id, self.epoch, {tp: held})

    def end(self, *, commit: bool) -> None:
        """Markers everywhere."""
        self.epoch += 1
        for partition in self._next:
            self.cluster.log(self.topic, partition).end_transaction(
                self.producer_id, self.epoch, commit=commit, leader_epoch=0, now_ms=1000
            )
            self._tell(partition)
        self._next.clear()
        self.cluster.groups.end_transaction(self.producer_id, self.epoch, commit=commit)

    def _tell(self, partition: int) -> None:
        self.cluster.trim(self.topic, partition, self.cluster.log(self.topic, partition).start)


def plain(memory: MemoryBackend, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    """A batch outside of any transaction."""
    batch = build_batch(RecordColumns(values=list(values), timestamps_ms=1000))
    memory.cluster.log(topic, partition).append(batch, leader_epoch=0)
    memory.cluster.trim(topic, partition, memory.cluster.log(topic, partition).start)
