"""``headrace.aio.WorkGroup``: named work, shared among processes, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from headrace._setting_names import Servers
from headrace._waits import check_seconds, check_wait_ms
from headrace.aio._work import Work, declaration_of, open_work
from headrace.aio._work_items import ItemQueue, OwnedItem
from headrace.errors import ClientClosed, Rejected
from headrace.group_types import ConsumerGroupMetadata
from headrace.work_types import Declaration, WorkChange, WorkItem
from headrace_common.runtime.clock import limit_ms

if TYPE_CHECKING:
    from headrace._transport.port import Transport

WAIT_SLICE_MS: Final = 500
"""Nobody waits longer without looking for failures."""

CLOSE_TIMEOUT_S: Final = 10.0


class WorkGroup:
    """
    Shares named work among processes: each item is done by one member at a time. See ``headrace.WorkGroup``, of which
    this is the twin: iteration is ``async for``, ``poll``, ``close`` and the ``with`` block are awaited, and an item's
    ``revoked`` is an ``asyncio.Event``.
    """

    def __init__(
        self,
        name: str,
        items: Iterable[WorkItem | str] | Declaration,
        bootstrap_servers: Servers = None,
        *,
        transport: Transport | None = None,
        **settings: Any,
    ) -> None:
        self._closed = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._queue: ItemQueue[asyncio.Event] | None = None
        self._work = open_work(name, items, bootstrap_servers, settings, transport, self._notify)
        self._closed = False

    async def start(self) -> Self:
        """Join; the first poll, or iteration, does it too."""
        self._begin()
        return self

    async def poll(self, timeout_ms: float = 0) -> WorkChange | None:
        """
        What has changed for this member since the last poll; None: nothing within ``timeout_ms``.

        Raises: see ``headrace.WorkGroup.poll``.
        """
        check_wait_ms(timeout_ms)
        self._check()
        if self._queue is not None:
            raise Rejected("the items of this group go to a loop; poll it, or iterate over it, not both")
        work = self._begin()
        clock = work._clock
        until_ms = clock.monotonic_ms() + timeout_ms
        while (change := work.poll()) is None:
            left_ms = until_ms - clock.monotonic_ms()
            if left_ms <= 0:
                return None
            await self._wait(min(left_ms, WAIT_SLICE_MS))
        return change

    async def _wait(self, ms: float) -> None:
        try:
            async with limit_ms(ms):
                await self._arrived.wait()
        except TimeoutError:
            return
        self._arrived.clear()

    def __aiter__(self) -> AsyncIterator[OwnedItem[asyncio.Event]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[OwnedItem[asyncio.Event]]:
        if self._queue is None:
            loop = asyncio.get_running_loop()
            self._queue = ItemQueue(self._work, asyncio.Event, loop.call_soon_threadsafe, self._arrived.set)
        queue = self._queue
        self._begin()
        queue.look()
        while True:
            while (item := queue.pop()) is not None:
                yield item
                self._check()
            await self._wait(WAIT_SLICE_MS)
            self._check()
            queue.look()
            if queue.failure is not None:
                failure, queue.failure = queue.failure, None
                raise failure

    def declare(self, items: Iterable[WorkItem | str] | Declaration) -> None:
        """There is something else to do from now on; see ``headrace.WorkGroup.declare``."""
        self._check()
        self._work.declare(declaration_of(items))

    def give_up(self, *items: str) -> None:
        """Nothing runs of these any more."""
        self._check()
        self._work.give_up(items)

    def report(
        self,
        *,
        lags: Mapping[str, int] | None = None,
        refused: Mapping[str, int] | None = None,
        ended: Iterable[str] = (),
    ) -> None:
        """How far this member is; see ``headrace.WorkGroup.report``."""
        self._check()
        self._work.report(lags, refused or {}, ended)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who commits positions of this group now; see ``headrace.WorkGroup.group_metadata``."""
        self._check()
        return self._work.metadata()

    @property
    def member_id(self) -> str:
        """Of this membership; another one after each join."""
        return self._work.core.member_id

    @property
    def member_epoch(self) -> int:
        """0: no member yet."""
        return max(0, self._work.core.generation)

    @property
    def transactional_id(self) -> str | None:
        """For this membership's producer: ``transactional_id_prefix`` and the member id."""
        return self._work.transactional_id

    @property
    def suspended(self) -> bool:
        """Whether others may have its items by now: it could not reach its coordinator for too long."""
        return self._work.suspended

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group: its items go to others at once. Idempotent. End what runs of them before."""
        check_seconds(timeout)
        if self._closed:
            return
        self._closed = True
        loop = self._work.loop
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end(self._work, timeout * 1_000), loop.loop))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _begin(self) -> Work:
        self._check()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._work.start()
        return self._work

    def _notify(self) -> None:
        if self._queue is not None:
            self._queue.look()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _check(self) -> None:
        if self._closed:
            raise ClientClosed("the work group is closed; make a new one")


async def end(work: Work, timeout_ms: float) -> None:
    """On the loop thread: say good-bye, and close the connections."""
    if work.joined:
        await work.leave(timeout_ms)
    await work.close()
