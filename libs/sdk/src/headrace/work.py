"""``headrace.WorkGroup``: named work, shared among processes, from threads that may block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace._lifetime import CLOSE_TIMEOUT_S, Lifetime
from headrace._setting_names import Servers
from headrace._waits import check_seconds, check_wait_ms
from headrace.aio._work import Work, declaration_of, open_work
from headrace.aio._work_items import ItemQueue, OwnedItem
from headrace.aio.work import WAIT_SLICE_MS, end
from headrace.errors import Rejected
from headrace.group_types import ConsumerGroupMetadata
from headrace.work_types import Declaration, WorkChange, WorkItem

if TYPE_CHECKING:
    from headrace._transport.port import Transport

GOOD_BYE_MS: Final = 2_000


class WorkGroup(Lifetime):
    """
    Shares named work among processes: each item is done by one member at a time, and comes to another one when its
    member leaves or dies. Crawlers, schedulers, shards, a leader: whatever has a name.

    Args:
        name: of the group.
        items: what there is to do: names, or ``headrace.WorkItem``; or a ``headrace.declare(…)``. Members may say
            different things while a program is replaced: the newest declaration counts, and who knows an older one does
            only what both have.
        bootstrap_servers: any brokers, ``"host:port,host:port"`` or a list; by default ``HEADRACE_BOOTSTRAP``.
        settings: see ``headrace.work_settings.WorkSettings``.

    A loop gets each item when it is given::

        with headrace.WorkGroup("crawlers", items=["eu", "us", "asia"]) as group:
            for item in group:
                threads.submit(crawl, item)   # until item.revoked is set; then item.release()

    ``item.epoch`` is above that of everybody who had the item before: with ``Producer.fence``, or in a database, it
    keeps out who was replaced and does not know it yet. What needs to know more than a loop does uses ``poll``.

    Raises:
        InvalidConfig: a setting is unknown or out of bounds; all of them are named.
    """

    _KIND: ClassVar[str] = "work group"

    def __init__(
        self,
        name: str,
        items: Iterable[WorkItem | str] | Declaration,
        bootstrap_servers: Servers = None,
        *,
        transport: Transport | None = None,
        **settings: Any,
    ) -> None:
        self._arrived = threading.Event()
        self._queue: ItemQueue[threading.Event] | None = None
        self._started = False
        self._work = open_work(name, items, bootstrap_servers, settings, transport, self._notify)
        self._begin_life(_end_of(self._work))

    def poll(self, timeout_ms: float = 0) -> WorkChange | None:
        """
        What has changed for this member since the last poll; None: nothing within ``timeout_ms``.

        Raises:
            FencedInstanceId: another process has this ``group_instance_id``.
            UnsupportedVersion: the cluster is below feature level 6 (``work-groups``).
            InconsistentGroupProtocol: the name is that of a group of consumers; or members are there that have said
                other ``terms``.
            HeadraceError: the coordinator has not been reached for ``default_api_timeout_ms``.
        """
        check_wait_ms(timeout_ms)
        self._check_usable()
        if self._queue is not None:
            raise Rejected("the items of this group go to a loop; poll it, or iterate over it, not both")
        work = self._begin()
        clock = work._clock
        until_ms = clock.monotonic_ms() + timeout_ms
        while (change := work.poll()) is None:
            left_ms = until_ms - clock.monotonic_ms()
            if left_ms <= 0:
                return None
            self._wait(min(left_ms, WAIT_SLICE_MS))
            self._check_usable()
        return change

    def __iter__(self) -> Iterator[OwnedItem[threading.Event]]:
        if self._queue is None:
            self._queue = ItemQueue(self._work, threading.Event, lambda do: do(), self._arrived.set)
        queue = self._queue
        self._begin()
        queue.look()
        while True:
            while (item := queue.pop()) is not None:
                yield item
                self._check_usable()
            self._wait(WAIT_SLICE_MS)
            self._check_usable()
            queue.look()
            if queue.failure is not None:
                failure, queue.failure = queue.failure, None
                raise failure

    def declare(self, items: Iterable[WorkItem | str] | Declaration) -> None:
        """
        There is something else to do from now on: as if another version of the program had come, while this member
        stays. What it has and is declared no more is revoked; new items come to members that declare them. Members
        whose declarations differ for longer than a moment give versions (``headrace.declare(…, version=)``).

        Raises:
            InvalidConfig: what is wrong, all of it. What the group refuses, as a version that was declared with
                something else, is raised by ``poll``.
        """
        self._check_usable()
        self._work.declare(declaration_of(items))

    def give_up(self, *items: str) -> None:
        """Nothing runs of these any more; what was revoked or lost goes to others by this."""
        self._check_usable()
        self._work.give_up(items)

    def report(
        self,
        *,
        lags: Mapping[str, int] | None = None,
        refused: Mapping[str, int] | None = None,
        ended: Iterable[str] = (),
    ) -> None:
        """
        How far this member is.

        Args:
            lags: how far its copies of items' state are behind, whole: of what it follows, and of what it still has.
            refused: items of its own for which it was refused, and the higher token that it was told; their epochs are
                raised above.
            ended: of ``GivenItem.unended``: nothing is open under these transactional ids any more.
        """
        self._check_usable()
        self._work.report(lags, refused or {}, ended)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """
        Who commits positions of this group now, for ``Producer.send_offsets_to_transaction``.

        Raises:
            UnknownMemberId: it was a member, and is out: give up what is lost.
            RebalanceInProgress: it is no member yet.
        """
        self._check_usable()
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

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """
        Leave the group: its items go to others at once. Idempotent. End what runs of them before.

        Args:
            timeout: seconds.
        """
        check_seconds(timeout)
        super().close(timeout)
        self._arrived.set()

    def __enter__(self) -> WorkGroup:
        self._begin()
        return self

    def _begin(self) -> Work:
        self._check_usable()
        if not self._started:
            self._started = True
            self._work.start()
        return self._work

    def _wait(self, ms: float) -> None:
        self._arrived.wait(ms / 1_000)
        self._arrived.clear()

    def _notify(self) -> None:
        if self._queue is not None:
            self._queue.look()
        else:
            self._arrived.set()


def _end_of(work: Work) -> Callable[[], Any]:
    return lambda: end(work, GOOD_BYE_MS)
