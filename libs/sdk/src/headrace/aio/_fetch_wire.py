"""
Between plans of the consumer's core and the messages of ``Fetch``. One of these belongs to one broker.

The request is kept: only entries that moved are written again, and protobuf serialises the rest in C.
"""

from __future__ import annotations

from headrace._core.fetch_aborted import Aborted
from headrace._core.fetch_answers import Answer
from headrace._core.fetch_plans import FetchPlan
from headrace.consumer_settings import ConsumerSettings
from headrace_common.core.ids import NO_NODE, NodeId, TopicId
from headrace_proto.v1 import broker_pb2 as pb


class FetchWire:
    """The request to one broker, from fetch to fetch."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._request = pb.FetchRequest()
        self._sent: dict[tuple[TopicId, int], pb.FetchPartition] = {}

    def request(self, plan: FetchPlan) -> pb.FetchRequest:
        """The message for ``plan``; the one before must have been answered."""
        if plan.rebuilt:
            self._rebuild(plan)
        else:
            for entry in plan.changed:
                sent = self._sent[entry.partition.key]
                sent.fetch_offset, sent.unreadable = entry.offset, entry.unreadable
                if entry.last_epoch >= 0:
                    sent.last_fetched_epoch = entry.last_epoch
                else:
                    sent.ClearField("last_fetched_epoch")
        self._request.max_bytes = plan.max_bytes
        return self._request

    def _rebuild(self, plan: FetchPlan) -> None:
        settings = self._settings
        request = pb.FetchRequest(
            min_bytes=settings.fetch_min_bytes,
            max_wait_ms=settings.fetch_max_wait_ms,
            rack=settings.client_rack or None,
            isolation_level=pb.READ_COMMITTED if settings.read_committed else pb.READ_UNCOMMITTED,
        )
        bytes_max = min(settings.max_partition_fetch_bytes, settings.fetch_max_bytes)
        self._sent = {}
        for key, entry in plan.entries.items():
            self._sent[key] = request.partitions.add(
                topic_id=key[0],
                partition=key[1],
                fetch_offset=entry.offset,
                max_bytes=bytes_max,
                leader_epoch=_omit_unknown(entry.partition.leader_epoch),
                last_fetched_epoch=_omit_unknown(entry.last_epoch),
                from_leader=entry.partition.from_leader,
                unreadable=entry.unreadable,
            )
        self._request = request

    @staticmethod
    def answers(plan: FetchPlan, response: pb.FetchResponse) -> list[Answer]:
        """What the broker said about partitions of ``plan``; about others it says nothing that matters."""
        entries, answers = plan.entries, []
        for result in response.partitions:
            entry = entries.get((TopicId(result.topic_id), result.partition))
            if entry is None:
                continue
            leader = (NodeId(result.leader.id), result.leader.leader_epoch) if result.HasField("leader") else None
            end = result.diverging if result.HasField("diverging") else None
            answers.append(
                Answer(
                    entry,
                    result.error,
                    result.message,
                    result.high_watermark,
                    result.log_start_offset,
                    list(result.batches),
                    leader,
                    None if end is None else (end.epoch, end.end_offset),
                    NodeId(result.preferred_replica) if result.HasField("preferred_replica") else NO_NODE,
                    [Aborted(a.producer_id, a.first_offset, a.last_offset) for a in result.aborted],
                    result.last_stable_offset,
                )
            )
        return answers


def _omit_unknown(epoch: int) -> int | None:
    return epoch if epoch >= 0 else None
