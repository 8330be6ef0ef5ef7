"""
What the leaders of partitions know of their logs: where they begin and end, which record a time means, when a record
was written, and which producers have a transaction open. Batched by leader, and asked again where leadership has moved.

Called by ``groups``, ``resets`` and ``open_transactions``. Answers are per partition; one that nobody could give is
its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from headrace_admin.core.lag import Bounds
from headrace_admin.engine.leaders import PATIENT, Leaders, Patience, by_name
from headrace_admin.engine.leaders import Answers as AnswersOf
from headrace_admin.engine.leaders import Ask as AskOf
from headrace_admin.ports import Brokers, Cluster
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import (
    CorruptBatch,
    HeadraceError,
    UnsupportedCompression,
    UnsupportedVersion,
    error_for,
)
from headrace_common.core.ids import NodeId, PartitionId, TopicId, TopicPartition
from headrace_common.runtime.threads import run_in_thread
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2
from headrace_proto.v1.transaction_pb2 import TxnMarker, TxnPartition, WriteTxnMarkersRequest

R = TypeVar("R")
Answers: TypeAlias = AnswersOf[TopicPartition, R]
Ask: TypeAlias = AskOf[TopicPartition, R]

LATEST: Final = -1
EARLIEST: Final = -2
_PER_FETCH: Final = 50
"""Partitions of one fetch: one batch of each comes, of up to a megabyte."""
_FETCH_BYTES: Final = 8 << 20
_GAPS_BYTES: Final = 64 << 10
"""Of a partition whose first batch had no record: in a compacted one many such headers may follow each other."""
FETCHES_MAX: Final = 20
"""Fetches from one leader for one question; what they did not answer stays unknown."""


class LogOffsets:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, brokers: Brokers) -> None:
        self._leaders = Leaders(cluster)
        self._brokers = brokers

    async def bounds(self, partitions: Iterable[TopicPartition], *, stable: bool) -> Answers[Bounds]:
        """
        The first offset that is there, and one past the last; ``stable``: past the last that readers of read_committed
        see, which is less while a transaction is open.
        """
        level = pb.READ_COMMITTED if stable else pb.READ_UNCOMMITTED

        async def ask(leader: NodeId, ids: Mapping[TopicPartition, PartitionId]) -> Answers[Bounds]:
            return await self._listed(leader, ids, (EARLIEST, LATEST), _bounds, level)

        return await self._at_leaders(partitions, ask)

    async def at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Answers[int | None]:
        """The first record at or after a time; None: none is that young."""

        async def ask(leader: NodeId, ids: Mapping[TopicPartition, PartitionId]) -> Answers[int | None]:
            return await self._listed(leader, ids, (timestamp_ms,), _since)

        return await self._at_leaders(partitions, ask)

    async def written_ms(self, offsets: Mapping[TopicPartition, int]) -> Answers[int | None]:
        """
        The timestamp of the first record at or after an offset, per partition. Reads one batch of each, and
        goes on where compaction has left no record; at most ``FETCHES_MAX`` times ``_FETCH_BYTES`` from a leader.
        None: there was none, or it would have been too much.
        """

        async def ask(leader: NodeId, ids: Mapping[TopicPartition, PartitionId]) -> Answers[int | None]:
            return await self._read(leader, ids, offsets)

        return await self._at_leaders(offsets, ask)

    async def open_producers(
        self, partitions: Iterable[TopicPartition], patience: Patience = PATIENT
    ) -> Answers[pb.PartitionProducers]:
        """Producers that have a transaction open there, by the start of it."""

        async def ask(leader: NodeId, ids: Mapping[TopicPartition, PartitionId]) -> Answers[pb.PartitionProducers]:
            wanted = [pb.FollowedPartition(topic_id=i.topic_id, partition=i.partition) for i in ids.values()]
            request = pb.DescribeProducersRequest(partitions=wanted, open_only=True)
            said = (await self._brokers.ask(leader, lambda stub: stub.DescribeProducers, request)).partitions
            assert len(said) == len(ids), "an answer has one entry per entry of its request"
            return {
                tp: one if one.error == errors_pb2.NONE else error_for(one.error, f"{tp}: {one.message}")
                for tp, one in zip(ids, said, strict=True)
            }

        return await self._at_leaders(partitions, ask, patience)

    async def write_marker(self, partition: TopicPartition, marker: TxnMarker) -> None:
        """
        Write the end of a transaction into one partition; may be repeated.

        Raises:
            HeadraceError: what its leader said last.
        """

        async def ask(leader: NodeId, ids: Mapping[TopicPartition, PartitionId]) -> Answers[None]:
            (i,) = ids.values()
            whole = TxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                commit=marker.commit,
                partitions=[TxnPartition(topic_id=i.topic_id, partition=i.partition)],
            )
            answer = await self._brokers.ask(
                leader, lambda stub: stub.WriteTxnMarkers, WriteTxnMarkersRequest(markers=[whole])
            )
            ((said,),) = (one.partitions for one in answer.markers)
            failed = said.error != errors_pb2.NONE
            return {partition: error_for(said.error, f"{partition}: {said.message}") if failed else None}

        (done,) = (await self._at_leaders([partition], ask)).values()
        if isinstance(done, HeadraceError):
            raise done

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _at_leaders(
        self, partitions: Iterable[TopicPartition], ask: Ask[R], patience: Patience = PATIENT
    ) -> Answers[R]:
        return await self._leaders.ask(partitions, by_name, ask, patience)

    async def _listed(
        self,
        leader: NodeId,
        ids: Mapping[TopicPartition, PartitionId],
        times: Sequence[int],
        read: Callable[[Sequence[pb.ListOffsetsPartitionResult]], R],
        level: pb.IsolationLevel.ValueType = pb.READ_UNCOMMITTED,
    ) -> Answers[R]:
        request = pb.ListOffsetsRequest(
            isolation_level=level,
            partitions=[
                pb.ListOffsetsPartition(topic_id=i.topic_id, partition=i.partition, timestamp_ms=t)
                for i in ids.values()
                for t in times
            ],
        )
        said = (await self._brokers.ask(leader, lambda stub: stub.ListOffsets, request)).partitions
        assert len(said) == len(ids) * len(times), "an answer has one entry per entry of its request"
        found: Answers[R] = {}
        for n, tp in enumerate(ids):
            own = said[n * len(times) : (n + 1) * len(times)]
            wrong = next((r for r in own if r.error != errors_pb2.NONE), None)
            found[tp] = read(own) if wrong is None else error_for(wrong.error, f"{tp}: {wrong.message}")
        return found

    async def _read(
        self, leader: NodeId, ids: Mapping[TopicPartition, PartitionId], offsets: Mapping[TopicPartition, int]
    ) -> Answers[int | None]:
        found: Answers[int | None] = {}
        left, places = dict(ids), {tp: offsets[tp] for tp in ids}
        for _ in range(FETCHES_MAX):
            if not left:
                break
            some = dict(list(left.items())[:_PER_FETCH])
            answered, further = await self._fetched(leader, some, offsets, places)
            if not answered and not further:  # nothing came at all: nothing of these is there any more
                answered = dict.fromkeys(some)
            found |= answered
            places |= further
            waiting = {tp: i for tp, i in left.items() if tp not in some}
            left = waiting | {tp: i for tp, i in some.items() if tp not in found}
        return found | dict.fromkeys(left, None)

    async def _fetched(
        self,
        leader: NodeId,
        ids: Mapping[TopicPartition, PartitionId],
        offsets: Mapping[TopicPartition, int],
        places: Mapping[TopicPartition, int],
    ) -> tuple[Answers[int | None], dict[TopicPartition, int]]:
        """What was found from ``places`` on; and for partitions where compaction left nothing there, where to go on."""
        wanted = [
            pb.FetchPartition(
                topic_id=i.topic_id,
                partition=i.partition,
                fetch_offset=places[tp],
                max_bytes=1 if places[tp] == offsets[tp] else _GAPS_BYTES,
            )
            for tp, i in ids.items()
        ]
        request = pb.FetchRequest(correlation_id=1, max_bytes=_FETCH_BYTES, partitions=wanted)
        answer = await self._brokers.fetch(leader, request)
        by_id = {i: tp for tp, i in ids.items()}
        found: Answers[int | None] = {}
        further: dict[TopicPartition, int] = {}
        for r in answer.partitions:
            tp = by_id[PartitionId(TopicId(r.topic_id), r.partition)]
            if r.error == errors_pb2.OFFSET_OUT_OF_RANGE:
                found[tp] = None  # it was trimmed meanwhile
            elif r.error != errors_pb2.NONE:
                found[tp] = error_for(r.error, f"{tp}: {r.message}")
            elif r.batches:
                written_ms, next_offset = await run_in_thread(_first_timestamp, tp, r.batches, places[tp])
                if written_ms is None and next_offset > places[tp]:
                    further[tp] = next_offset
                else:
                    found[tp] = written_ms
        return found, further


def _bounds(said: Sequence[pb.ListOffsetsPartitionResult]) -> Bounds:
    start, end = said[0].offset, said[1].offset
    return Bounds(start, max(start, end))


def _since(said: Sequence[pb.ListOffsetsPartitionResult]) -> int | None:
    return said[0].offset if said[0].offset >= 0 else None


def _first_timestamp(
    tp: TopicPartition, batches: Sequence[bytes], offset: int
) -> tuple[int | HeadraceError | None, int]:
    """Of the first record at or after ``offset``, control records do not count; and where the batches end."""
    end = offset
    for batch in batches:
        try:
            header = read_header(batch)
            end = header.next_offset
            if end <= offset or header.control:
                continue
            decoded = decode_batch(batch)
        except (CorruptBatch, UnsupportedVersion, UnsupportedCompression) as failed:
            text = f"{tp}@{offset}: {failed}; consumers stop here, and Consumer.skip_batch() goes on behind it"
            return type(failed)(text), end
        for at, timestamp_ms in zip(decoded.offsets(), decoded.timestamps(), strict=True):
            if at >= offset:
                return timestamp_ms, end
    return None, end
