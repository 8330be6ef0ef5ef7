"""What the leaders of the memory cluster know of producers with open transactions. ``MemoryCluster`` has it."""

from __future__ import annotations

from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch, NetworkFailed, NotLeader, UnknownTopicId
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import ClusterImage
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn


class MemoryProducers:
    """Part of ``MemoryCluster``, whose image and logs it reads. Epochs only rise; a marker ends what is open."""

    image: ClusterImage
    down: set[int]
    ends: dict[PartitionId, int]
    starts: dict[PartitionId, int]

    def __init__(self) -> None:
        self._producers: dict[PartitionId, dict[int, pb.ProducerState]] = {}
        self._verdicts: dict[tuple[PartitionId, int], bool] = {}
        self.lost_markers = 0
        """So many answers to markers are lost from now on, after they were written."""

    def write(
        self, topic: str, partition: int, producer_id: int, epoch: int = 0, *, first_offset: int, since_ms: int
    ) -> None:
        """A producer has a transaction open."""
        state = pb.ProducerState(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=0,
            last_timestamp_ms=since_ms,
            transaction_start=first_offset,
            transaction_since_ms=since_ms,
        )
        self._producers.setdefault(self._id(topic, partition), {})[producer_id] = state

    def _id(self, topic: str, partition: int) -> PartitionId:
        return PartitionId(self.image.topic_ids[topic], partition)

    def stable_end(self, i: PartitionId) -> int:
        """Up to where readers of read_committed come."""
        return min([self.ends.get(i, 0), *(p.transaction_start for p in self._open(i))])

    def _open(self, i: PartitionId) -> list[pb.ProducerState]:
        there = [p for p in self._producers.get(i, {}).values() if p.HasField("transaction_start")]
        return sorted(there, key=lambda p: (p.transaction_start, p.producer_id))

    def end_transaction(self, i: PartitionId, producer_id: int, epoch: int, *, commit: bool) -> None:
        """
        A marker, as a leader takes it.

        Raises:
            InvalidProducerEpoch: the partition has moved on.
        """
        known = self._producers.setdefault(i, {}).get(producer_id)
        if known is not None and epoch <= known.producer_epoch:
            again = not known.HasField("transaction_start") and self._verdicts.get((i, producer_id)) == commit
            if epoch == known.producer_epoch and again:
                return
            raise InvalidProducerEpoch(f"epoch {epoch} is not above {known.producer_epoch}")
        self._producers[i][producer_id] = pb.ProducerState(
            producer_id=producer_id, producer_epoch=epoch, last_sequence=-1
        )
        self._verdicts[i, producer_id] = commit
        self.ends[i] = self.ends.get(i, 0) + 1

    # --- Brokers --------------------------------------------------------------------------------------------------

    async def describe_producers(
        self, broker: NodeId, request: pb.DescribeProducersRequest
    ) -> pb.DescribeProducersResponse:
        """By the start of what they have open."""
        self._answer(broker)
        answer = pb.DescribeProducersResponse()
        for p in request.partitions:
            i = PartitionId(TopicId(p.topic_id), p.partition)
            said = answer.partitions.add(topic_id=p.topic_id, partition=p.partition)
            try:
                self._led(broker, i)
            except HeadraceError as error:
                detail = detail_of(error)
                said.error, said.message = detail.code, detail.message
                continue
            said.high_watermark, said.last_stable_offset = self.ends.get(i, 0), self.stable_end(i)
            said.producers.extend(self._open(i))
            if not request.open_only:
                rest = self._producers.get(i, {}).values()
                said.producers.extend(s for s in rest if not s.HasField("transaction_start"))
        return answer

    async def write_txn_markers(
        self, broker: NodeId, request: txn.WriteTxnMarkersRequest
    ) -> txn.WriteTxnMarkersResponse:
        """Each by itself."""
        self._answer(broker)
        answer = txn.WriteTxnMarkersResponse()
        for marker in request.markers:
            results = answer.markers.add()
            for p in marker.partitions:
                i, result = PartitionId(TopicId(p.topic_id), p.partition), results.partitions.add()
                try:
                    self._led(broker, i)
                    self.end_transaction(i, marker.producer_id, marker.producer_epoch, commit=marker.commit)
                except HeadraceError as error:
                    detail = detail_of(error)
                    result.error, result.message = detail.code, detail.message
        if self.lost_markers:
            self.lost_markers -= 1
            raise NetworkFailed("the connection broke before the answer came")
        return answer

    def _answer(self, broker: NodeId) -> None:
        if broker in self.down:
            raise NetworkFailed(f"broker {broker} does not answer")

    def _led(self, broker: NodeId, i: PartitionId) -> None:
        partition = self.image.partitions.get(i)
        if partition is None:
            raise UnknownTopicId("no topic has this id")
        if partition.leader != broker:
            raise NotLeader(f"broker {broker} does not lead it")
