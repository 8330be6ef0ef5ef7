"""Carries out what ``_core.commits`` decides: one request at a time, with the identity of the moment. On one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from headrace._core.commits import CommitEffect, CommitQueue, Offsets, SendCommit
from headrace._core.phases import Identity
from headrace._runtime import Tasks
from headrace._transport.port import Transport
from headrace.aio._coordinators import ATTEMPT_MS
from headrace.aio._group_coordinator import GroupCoordinator
from headrace.aio._group_wire import commits_of
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import ClientClosed, HeadraceError, error_for
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock, call_later_ms
from headrace_proto.v1 import coordinator_pb2 as pb

PER_REQUEST_MAX: Final = 10_000


class Committing:
    """
    The commits of one consumer.

    Args:
        identity: who commits now.
            Raises: ``HeadraceError``: nobody may.
    """

    def __init__(
        self,
        transport: Transport,
        coordinator: GroupCoordinator,
        settings: ConsumerSettings,
        clock: Clock,
        tasks: Tasks,
        identity: Callable[[], Identity],
    ) -> None:
        self._transport = transport
        self._coordinator = coordinator
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._identity = identity
        self._queue = CommitQueue(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._closed = False

    def commit(self, offsets: Offsets, deadline_ms: float | None) -> asyncio.Future[HeadraceError | None]:
        """Commit; with a deadline (monotonic ms) repeated until then. The future has the error, or None."""
        done: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()
        if self._closed:
            done.set_result(ClientClosed("the consumer was closed before the commit"))
        else:
            self._carry_out(self._queue.add(done, offsets, deadline_ms))
        return done

    def give_up(self, partitions: Collection[TopicPartition], error: HeadraceError) -> None:
        """These are not the consumer's any more: its commits of them that still wait fail."""
        self._queue.give_up(partitions, error)

    def _carry_out(self, effects: list[CommitEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendCommit):
                self._tasks.start(self._send(effect.offsets), "consumer: commit")
            else:
                assert isinstance(effect.ref, asyncio.Future), "commit made it"
                if not effect.ref.done():
                    effect.ref.set_result(effect.error)
        if self._queue.retry_at_ms is not None:
            wait_ms = max(0.0, self._queue.retry_at_ms - self._clock.monotonic_ms())
            call_later_ms(wait_ms, self._tick)

    def _tick(self) -> None:
        self._carry_out(self._queue.tick(self._clock.monotonic_ms() + 1))

    async def _send(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        results: dict[TopicPartition, HeadraceError | None] = {}
        try:
            identity = self._identity()
            entries = list(offsets.items())
            for first in range(0, len(entries), PER_REQUEST_MAX):
                results.update(await self._ask(identity, entries[first : first + PER_REQUEST_MAX]))
            try:
                moved_on = self._identity() != identity
            except HeadraceError:
                moved_on = False
        except HeadraceError as error:
            self._coordinator.judge_failure(error)
            self._carry_out(self._queue.failed(error, self._clock.monotonic_ms()))
            return
        for failed in filter(None, results.values()):
            self._coordinator.judge_failure(failed)
        self._carry_out(self._queue.answered(results, self._clock.monotonic_ms(), moved_on=moved_on))

    async def _ask(
        self, identity: Identity, entries: list[tuple[TopicPartition, Committed]]
    ) -> dict[TopicPartition, HeadraceError | None]:
        settings = self._settings
        request = pb.CommitOffsetsRequest(
            group_id=self._coordinator.group_id,
            member_id=identity.member_id,
            group_instance_id=settings.group_instance_id if identity.member_id else None,
            generation=identity.generation,
            offsets=commits_of(entries),
        )
        coordinator = await self._coordinator.find()
        attempt_ms = min(ATTEMPT_MS, settings.request_timeout_ms)
        response = await self._transport.group_call(lambda stub: stub.CommitOffsets, request)(coordinator, attempt_ms)
        return {
            TopicPartition(r.topic, r.partition): error_for(r.error, f"{r.topic}-{r.partition}: {r.message}")
            if r.error
            else None
            for r in response.results
        }

    def close(self) -> None:
        """What is not answered fails."""
        self._closed = True
        self._carry_out(self._queue.close(ClientClosed("the consumer was closed before the commit was answered")))
