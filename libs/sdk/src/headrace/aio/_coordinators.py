"""Finds the coordinator of one group, and asks it for committed offsets. Lives on the group's event loop."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headrace._core.group_errors import FORGET_COORDINATOR
from headrace._transport.port import Coordinator, Transport
from headrace.aio._group_wire import listed
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import ClusterUnreachable, ErrorCode, HeadraceError, WaitTimedOut, error_for
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import coordinator_pb2 as pb

UNSTABLE_PAUSE_MS: Final = 10.0
"""First pause where a transaction is being decided: that takes a few ms, unless somebody hangs."""

ATTEMPT_MS: Final = 6_000
"""How long one request to a coordinator may take: longer than it may wait for its log, shorter than a session."""


class Coordinators:
    """Who has the group, as far as is known."""

    def __init__(self, transport: Transport, settings: ConsumerSettings, clock: Clock) -> None:
        assert settings.group_id is not None, "only groups have one"
        self.group_id = settings.group_id
        self.known: Coordinator | None = None
        self._transport = transport
        self._settings = settings
        self._clock = clock

    async def find(self, *, anew: bool = False) -> Coordinator:
        """
        The coordinator; asked for when it is not known.

        Raises:
            HeadraceError: what brokers said.
        """
        if anew or self.known is None:
            self.known = None
            self.known = await self._transport.find_coordinator(self.group_id)
        return self.known

    def heard(self, error: HeadraceError) -> None:
        """A coordinator failed so: somebody else may have the group."""
        if error.code in FORGET_COORDINATOR:
            self.known = None

    async def fetch(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, Committed | None]:
        """
        What is committed; repeated while that can help. A position in a transaction that is not decided is waited for.

        Raises:
            HeadraceError: what the coordinator said last.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        longest_ms = float(max(1, self._settings.retry_backoff_ms))
        pause_ms, unstable_ms = longest_ms, min(UNSTABLE_PAUSE_MS, longest_ms)
        while True:
            error = None
            try:
                found = await self._ask(partitions)
            except HeadraceError as failed:
                error = failed
                self.heard(error)
            else:
                return found
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if not error.retriable or isinstance(error, ClusterUnreachable):
                raise error
            if left_ms <= 0:
                text = (
                    f"committed offsets of group {self.group_id!r} could not be had within {timeout_ms:g} ms: {error}"
                )
                raise WaitTimedOut(text) from error
            if error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                await self._clock.sleep_ms(min(unstable_ms, left_ms))
                unstable_ms = min(unstable_ms * 2, longest_ms)
                continue
            await self._clock.sleep_ms(min(pause_ms, left_ms))
            pause_ms = min(pause_ms * 2, max(1, self._settings.retry_backoff_max_ms))

    async def _ask(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        if not partitions:
            return {}
        request = pb.FetchOffsetsRequest(group_id=self.group_id, partitions=listed(partitions, {}), require_stable=True)
        attempt_ms = min(ATTEMPT_MS, self._settings.request_timeout_ms)
        response = await self._transport.fetch_offsets(await self.find(), request, attempt_ms)
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
