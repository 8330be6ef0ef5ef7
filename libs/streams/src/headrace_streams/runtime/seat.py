"""What a worker has of its group: tasks that it takes over, feeds, gives up, and stands by for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from headrace.records import TopicPartition
from headrace.work_types import GivenItem, WorkChange
from headrace_common.core.errors import HeadraceError, UnknownMemberId
from headrace_streams.config import StreamsConfig
from headrace_streams.ports import Membership, Writer
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.following import Changelogs
from headrace_streams.runtime.owned import Outside, Owned
from headrace_streams.runtime.taking import Taking


class Seat:
    """One membership: what the group gave this worker, and what becomes of it."""

    def __init__(
        self,
        app: str,
        config: StreamsConfig,
        outside: Outside,
        changelogs: Changelogs,
        assembled: Assembled,
        membership: Membership,
        check_rows: Callable[[Mapping[TopicPartition, int]], Awaitable[None]],
    ) -> None:
        """
        Args:
            check_rows: can this program read the rows below these offsets of repartition topics? With the worker's
                reader.
        """
        self.app = app
        self._config = config
        self._outside = outside
        self._changelogs = changelogs
        self._assembled = assembled
        self.membership = membership
        self._check_rows = check_rows
        self._checking: asyncio.Task[None] | None = None
        self.writer: Writer | None = None
        self.writes_as: str | None = None
        self.taking: Taking | None = None
        self.assigned: dict[str, GivenItem] = {}
        """To be taken over."""
        self.taken: dict[str, tuple[Owned, asyncio.Task[Owned]]] = {}
        """What is being taken over."""
        self.owned: dict[str, Owned] = {}
        """What is fed."""
        self.revoked: set[str] = set()
        """To give up after the next commit."""
        self.raised: dict[str, GivenItem] = {}
        """What is fed and has a new epoch, or others' transactions to end."""
        self.follows: frozenset[str] = frozenset()
        """What the group wants it to stand by for."""
        self.warm_ups: frozenset[str] = frozenset()
        """Of these, what is to move here as soon as its state is."""
        self.followed: dict[str, Owned] = {}
        """What it stands by for."""

    async def change(self, change: WorkChange) -> None:
        """
        What the group wants now.

        Raises:
            UnknownMemberId: this membership is over.
        """
        if change.lost:
            raise UnknownMemberId(f"this worker was put out of the group {self.app}")
        self.assigned |= {given.id: given for given in change.assigned}
        for given in change.raised:
            if given.id in self.owned:
                self.raised[given.id] = given
            else:
                await self.leave(given.id)
                self.assigned[given.id] = given
        self.revoked |= change.revoked
        self.follows, self.warm_ups = change.standby | change.warm_up, change.warm_up

    async def take(self) -> None:
        """Begin to take over what was assigned."""
        if not self.assigned:
            return
        if self.writes_as != self.membership.transactional_id:  # its first tasks, or the first under another member id
            await self._end_taking()
            self.writer = await self._outside.writers.open(self.membership)
            self.taking = Taking(
                self.app,
                self._config,
                self._outside,
                self._changelogs,
                self.membership,
                self.writer,
                hops=self._assembled.hops,
                resends=self._assembled.resends,
            )
            self.writes_as = self.membership.transactional_id
        assert self.taking is not None
        for item, given in list(self.assigned.items()):
            owned = self.followed.pop(item, None)
            if owned is None:
                owned = await self._made(item)
            taking = asyncio.create_task(self.taking.take(owned, given), name=f"take {item}")
            self.taken[item] = owned, taking
            del self.assigned[item]
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(self.taking), name="check rows")

    async def _check(self, taking: Taking) -> None:
        """Tasks that were created before this one have begun to end what others have left open."""
        await self._check_rows(await taking.ends())

    async def _end_taking(self) -> None:
        """Nothing is looked for or written any more."""
        if self._checking is not None:
            self._checking.cancel()
            with suppress(asyncio.CancelledError, HeadraceError):
                await self._checking
        if self.taking is not None:
            await self.taking.close()
        if self.writer is not None:
            await self.writer.close()
        self._checking = self.taking = self.writer = None

    @property
    def checked(self) -> bool:
        """Whether all rows that wait have been looked at. Before that nothing is fed, and the reader is in use."""
        return self._checking is not None and self._checking.done()

    def settle(self) -> list[Owned]:
        """
        What has been taken over since; it is to be fed.

        Raises:
            HeadraceError: a task cannot be taken, or the program cannot read the rows that wait.
        """
        ready = {item: taking.result() for item, (_, taking) in self.taken.items() if taking.done()}
        if self._checking is None or not self._checking.done():
            return []
        self._checking.result()
        for item, owned in ready.items():
            del self.taken[item]
            self.owned[item] = owned
            owned.began_at_ms = self._outside.clock.monotonic_ms()
            owned.awake(owned.began_at_ms)
        return list(ready.values())

    async def leave(self, item: str) -> None:
        """A task is no more, here."""
        owned = self.owned.pop(item, None) or self.followed.pop(item, None)
        if item in self.taken:
            owned, taking = self.taken.pop(item)
            taking.cancel()
            with suppress(asyncio.CancelledError, HeadraceError):
                await taking
        self.assigned.pop(item, None)
        self.raised.pop(item, None)
        if owned is not None and owned.store is not None:
            assert owned.spec.changelog is not None
            await self._changelogs.leave(owned.spec.changelog)
            await self._outside.compute(owned.store.close)

    async def raise_epochs(self) -> None:
        """
        What is fed has new epochs.

        Raises:
            FencedWriter: another has a higher one.
        """
        for item, given in list(self.raised.items()):
            assert self.taking is not None
            await self.taking.end(given)
            if self.owned[item].store is not None:
                await self.taking.fence(self.owned[item], given)
            del self.raised[item]

    async def stand_by(self) -> None:
        """Follow what the group wants followed."""
        wanted = self.follows - self.owned.keys() - self.taken.keys()
        for item in self.followed.keys() - wanted:
            await self.leave(item)
        for item in wanted - self.followed.keys():
            owned = self.followed[item] = await self._made(item)
            self._changelogs.follow(owned)

    async def _made(self, item: str) -> Owned:
        """The task, not begun; its disk is opened, which is to wait for it."""
        made: Owned = await self._outside.compute(self._assembled.make, self._assembled.specs[item], self._outside)
        return made

    def lags(self) -> dict[str, int]:
        """Of what it follows, for whichever reason, how far each is behind."""
        known = self._changelogs.lags()
        followed = {item: owned for item, (owned, _) in self.taken.items()} | self.followed
        return {item: known[log] for item, one in followed.items() if (log := one.spec.changelog) in known}

    async def get_up(self, *, at_once: bool) -> None:
        """
        The end of it: its tasks are let go of, what is open is aborted, and the group hears of it.

        Args:
            at_once: leave stores as they are.
        """
        if not at_once:
            for item in [*self.taken, *self.owned, *self.followed]:
                await self.leave(item)
        await self._end_taking()
        await self.membership.close()
