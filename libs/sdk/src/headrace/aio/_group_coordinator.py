"""The way to the coordinator of one group, and what it says is committed. Lives on the group's event loop."""

from __future__ import annotations

from collections.abc import Collection

from headrace._transport.port import Coordinator, Transport
from headrace.aio._coordinators import CoordinatorLink
from headrace.aio._group_wire import encode_partitions
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import ErrorCode, error_for
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import coordinator_pb2 as pb


class GroupCoordinator(CoordinatorLink):
    """Who has the group, as far as is known."""

    def __init__(self, transport: Transport, settings: ConsumerSettings, clock: Clock) -> None:
        assert settings.group_id is not None, "only groups have one"
        self.group_id = group_id = settings.group_id
        self._transport = transport
        super().__init__(lambda: transport.find_coordinator(group_id), settings, clock)

    async def fetch(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, Committed | None]:
        """
        What is committed; repeated while that can help. A position in a transaction that is not decided is waited for.

        Raises:
            HeadraceError: what the coordinator said last.
        """
        if not partitions:
            return {}
        request = pb.FetchOffsetsRequest(
            group_id=self.group_id, partitions=encode_partitions(partitions, {}), require_stable=True
        )
        call = self._transport.group_call(lambda stub: stub.FetchOffsets, request)

        async def attempt(coordinator: Coordinator, attempt_ms: float) -> dict[TopicPartition, Committed | None]:
            return _decode_offsets(partitions, await call(coordinator, attempt_ms))

        what = f"the question for committed offsets of group {self.group_id!r}, within {timeout_ms:g} ms,"
        return await self.ask(what, attempt, self._clock.monotonic_ms() + timeout_ms)


def _decode_offsets(
    partitions: Collection[TopicPartition], response: pb.FetchOffsetsResponse
) -> dict[TopicPartition, Committed | None]:
    found: dict[TopicPartition, Committed | None] = dict.fromkeys(partitions)
    for entry in response.offsets:
        tp = TopicPartition(entry.topic, entry.partition)
        if tp not in found:
            continue
        error = error_for(entry.error, f"{tp}: {entry.message}") if entry.error else None
        if error is not None and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
        if error is None and entry.offset >= 0:
            found[tp] = Committed(entry.offset, entry.leader_epoch, entry.metadata)
    return found
