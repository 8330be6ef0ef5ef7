"""
Asks brokers which of their logs cannot be compacted and how full their disks are. ``statuses`` calls it for each
status, so it waits for nobody long: who does not answer is left out.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_admin.core.stored import Disk, Scrub, Stored, StuckLog
from headrace_admin.ports import Brokers, Cluster
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, TopicId
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.clock import limit_ms
from headrace_proto.v1 import broker_pb2

ASK_MS_MAX: Final = 1_500


class StoredLogs:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, brokers: Brokers) -> None:
        self._cluster = cluster
        self._brokers = brokers

    async def look(self) -> Stored:
        """What all brokers tell that are not fenced; strays have no topic to be named by and are left out."""
        image = self._cluster.image
        there = [n.key.id for n in image.brokers() if not n.fenced]
        answers = await asyncio.gather(*(self._ask(broker) for broker in there))
        told = [(broker, answer) for broker, answer in zip(there, answers, strict=True) if answer is not None]
        stuck = [one for broker, answer in told for one in _stuck(image, broker, answer)]
        unreadable = [one for broker, answer in told for one in _unreadable(image, broker, answer)]
        disks = tuple(_disk(broker, answer) for broker, answer in told)
        return Stored(tuple(sorted(stuck)), disks, tuple(sorted(unreadable)))

    async def _ask(self, broker: NodeId) -> broker_pb2.DescribeLogsResponse | None:
        try:
            async with limit_ms(ASK_MS_MAX):
                return await self._brokers.ask(
                    broker, lambda stub: stub.DescribeLogs, broker_pb2.DescribeLogsRequest(only_stuck=True)
                )
        except (HeadraceError, TimeoutError):
            return None


def _stuck(image: ClusterImage, broker: NodeId, answer: broker_pb2.DescribeLogsResponse) -> list[StuckLog]:
    return [
        StuckLog(topic.name, log.partition, broker, log.compaction.waits_for)
        for log in answer.logs
        if log.compaction.stuck and (topic := image.topics.get(TopicId(log.topic_id))) is not None
    ]


def _unreadable(image: ClusterImage, broker: NodeId, answer: broker_pb2.DescribeLogsResponse) -> list[StuckLog]:
    return [
        StuckLog(topic.name, log.partition, broker, log.unreadable)
        for log in answer.logs
        if log.unreadable and (topic := image.topics.get(TopicId(log.topic_id))) is not None
    ]


def _disk(broker: NodeId, answer: broker_pb2.DescribeLogsResponse) -> Disk:
    reserve = answer.disk_reserve_bytes if answer.HasField("disk_reserve_bytes") else None
    return Disk(broker, answer.disk_free_bytes, answer.disk_total_bytes, reserve, _scrub(answer))


def _scrub(answer: broker_pb2.DescribeLogsResponse) -> Scrub | None:
    if not answer.HasField("scrub"):
        return None
    said = answer.scrub
    ended_ms = said.last_ended_ms if said.HasField("last_ended_ms") else None
    return Scrub(said.running, said.logs, said.logs_done, said.bytes_read, said.lost_logs, ended_ms)
