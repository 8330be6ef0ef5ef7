"""
Asks leaders for offsets, by position or by time, and follows them when they move. With ``read_committed`` they answer
for what is below the last stable offset.

Used by the consumer for ``beginning_offsets`` and the like; starts that the core looks up go the same way once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from headrace._core.remedies import HOPELESS, Asker, remedy_for
from headrace._transport.port import Transport
from headrace.aio._client import ClusterClient
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import HeadraceError, LeaderNotAvailable, UnknownTopicOrPartition, error_for
from headrace_common.core.ids import NO_NODE, NodeId, TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import broker_pb2 as pb

PER_REQUEST_MAX: Final = 10_000


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int
    """Of that record; -1 where a start or an end was asked for."""
    leader_epoch: int
    """-1: not known."""


class OffsetQueries:
    """``ListOffsets`` for any partitions, with retries up to a deadline."""

    def __init__(self, cluster: ClusterClient, transport: Transport, settings: ConsumerSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._transport = transport
        self._settings = settings
        self._clock = clock

    async def ask(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """
        For each partition the offset for a timestamp as ``ListOffsets`` takes it; offset -1: no record is that young.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            HeadraceError: what its leader said last, after ``timeout_ms`` of retries.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        pause_ms: float = self._settings.retry_backoff_ms
        while True:
            left = {tp: timestamp for tp, timestamp in wanted.items() if tp not in found}
            errors = await self._round(left, found, deadline)
            if not errors:
                return found
            for error in errors.values():
                if remedy_for(Asker.CONSUMER, error.code) in HOPELESS or self._clock.monotonic_ms() >= deadline:
                    raise error
            self._cluster.refresh("offsets could not be asked for")
            await self._clock.sleep_ms(min(pause_ms, deadline - self._clock.monotonic_ms()))
            pause_ms = min(pause_ms * 2, self._settings.retry_backoff_max_ms)

    async def _round(
        self, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, OffsetAndTimestamp], deadline: float
    ) -> dict[TopicPartition, HeadraceError]:
        """Ask each leader once; what was found is added to ``found``, the rest is returned with its errors."""
        requests, unled = await self.by_leader(wanted, deadline)
        errors: dict[TopicPartition, HeadraceError] = {
            tp: LeaderNotAvailable(f"{tp} has no leader now") for tp in unled
        }
        said = await asyncio.gather(*(self.ask_broker(b, {tp: wanted[tp] for tp in tps}) for b, tps in requests))
        for answers in said:
            for tp, answer in answers.items():
                if isinstance(answer, HeadraceError):
                    errors[tp] = answer
                else:
                    found[tp] = answer
        return errors

    async def by_leader(
        self, wanted: Collection[TopicPartition], deadline: float
    ) -> tuple[list[tuple[NodeId, list[TopicPartition]]], list[TopicPartition]]:
        """
        Whom to ask for which, in parts that fit one request; and those that nobody leads now.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        by_broker: dict[NodeId, list[TopicPartition]] = {}
        for tp in wanted:
            await self._cluster.topic(tp.topic, max(1.0, deadline - self._clock.monotonic_ms()))
            leader = self._cluster.leader(tp)
            if leader is None:
                await self._cluster.await_refresh(f"{tp} may be new")
                leader = self._cluster.leader(tp)
            if leader is None:
                raise UnknownTopicOrPartition(f"topic {tp.topic!r} has no partition {tp.partition}")
            by_broker.setdefault(leader.broker, []).append(tp)
        unled = by_broker.pop(NO_NODE, [])
        return [
            (broker, tps[first : first + PER_REQUEST_MAX])
            for broker, tps in by_broker.items()
            for first in range(0, len(tps), PER_REQUEST_MAX)
        ], unled

    async def ask_broker(
        self,
        broker: NodeId,
        wanted: Mapping[TopicPartition, int],
        *,
        wait_above: Mapping[TopicPartition, int] | None = None,
        wait_ms: int = 0,
    ) -> dict[TopicPartition, OffsetAndTimestamp | HeadraceError]:
        """
        One request to one leader; failures, of the call too, are returned per partition.

        Args:
            wait_above: wait up to ``wait_ms`` until one of the logs ends above this; all ends must be asked for.
        """
        level = pb.READ_COMMITTED if self._settings.read_committed else pb.READ_UNCOMMITTED
        request = pb.ListOffsetsRequest(isolation_level=level, max_wait_ms=wait_ms)
        for tp, timestamp_ms in wanted.items():
            view, leader = self._cluster.find_view(tp.topic), self._cluster.leader(tp)
            if view is None or leader is None:
                error = UnknownTopicOrPartition(f"{tp} is not in the cluster's metadata")
                return dict.fromkeys(wanted, error)
            request.partitions.add(
                topic_id=view.topic_id,
                partition=tp.partition,
                timestamp_ms=timestamp_ms,
                leader_epoch=leader.epoch if leader.epoch >= 0 else None,
                wait_above=None if wait_above is None else wait_above[tp],
            )
        try:
            response = await self._transport.list_offsets(broker, request)
        except HeadraceError as error:
            return dict.fromkeys(wanted, error)
        return {
            tp: error_for(r.error, f"{tp}: {r.message}")
            if r.error
            else OffsetAndTimestamp(r.offset, r.timestamp_ms, r.leader_epoch)
            for tp, r in zip(wanted, response.partitions, strict=True)
        }
