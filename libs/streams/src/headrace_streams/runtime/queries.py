"""Answers questions about state: from the cold tiers of tasks that this worker has, so committed state only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    NotCoordinator,
    NotFound,
    OffsetNotAvailable,
    Rejected,
)
from headrace_common.core.murmur2 import partitions_for
from headrace_common.runtime.clock import Deadline
from headrace_streams.core.formats.lookup import key_of_texts
from headrace_streams.ports import Question, StoreInfo, TaskStore
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.following import progress_of
from headrace_streams.runtime.owned import Owned

_WAIT_MS_MAX: Final = 1_000
"""Who waits longer asks again: the task may have moved meanwhile."""


class Queries:
    """What a worker can be asked. ``owned`` and ``followed`` are its own, and change while it works."""

    def __init__(self, read: Callable[..., Awaitable[Any]]) -> None:
        """
        Args:
            read: runs a piece of reading where it holds nothing up.
        """
        self._read = read
        self.assembled: Assembled | None = None
        self.owned: Mapping[str, Owned] = {}
        self.followed: Mapping[str, Owned] = {}
        self._committed = asyncio.Event()

    def stores(self) -> list[StoreInfo]:
        """
        Of the app, whoever has them.

        Raises:
            CoordinatorNotAvailable: the worker has just started.
        """
        if self.assembled is None:
            raise CoordinatorNotAvailable("this worker has just started; ask again")
        assembly = self.assembled.assembly
        return [
            StoreInfo(node.name, part.name, assembly.tasks_of(part), node.keys)
            for part in assembly.parts
            for node in part.nodes
            if node.stateful
        ]

    def locate(self, store: str, texts: Sequence[str]) -> tuple[bytes, int]:
        """
        The key that texts stand for, one for each of its columns, and its partition.

        Raises:
            NotFound: the app has no such store.
            Rejected: its keys have other columns.
        """
        info = self._info(store)
        key = key_of_texts(store, info.keys, texts)
        (partition,) = partitions_for(pa.array([key], pa.binary()), info.partitions).tolist()
        return key, partition

    async def rows(self, asked: Question) -> pa.Table | None:
        """
        Rows of a store in one task; None: it has nothing that can be shown.

        Raises:
            NotFound: the app has no such store.
            NotCoordinator: the task is elsewhere, or is being taken over.
            OffsetNotAvailable: the record that it is to contain is not in it yet.
            Rejected: the task does not read that record's topic.
        """
        info = self._info(asked.store)
        task = f"{info.sub_topology}/{asked.partition}"
        owned = self.owned.get(task) or (self.followed.get(task) if asked.stale else None)
        if owned is None or owned.store is None:
            raise NotCoordinator(f"task {task} is not at this worker now")
        assert self.assembled is not None
        try:
            if asked.topic:
                await self._reach(owned, owned.store, asked)
            found: pa.Table | None = await self._read(
                self.assembled.assembly.read,
                asked.store,
                asked.partition,
                owned.store.cold(asked.store),
                asked.key,
                asked.first,
                asked.last,
            )
        except (OffsetNotAvailable, Rejected):
            raise
        except HeadraceError as error:
            if task in self.owned:
                raise
            raise NotCoordinator(f"task {task} has just left this worker") from error
        return found

    def notify(self) -> None:
        """A commit has reached the cold tiers."""
        self._committed.set()
        self._committed = asyncio.Event()

    async def _reach(self, owned: Owned, store: TaskStore, asked: Question) -> None:
        """Until the task's committed state contains a record."""
        spec = owned.spec
        if asked.topic not in spec.part.topics:
            raise Rejected(
                f"the state {asked.store!r} cannot be waited for by a record of {asked.topic}: its tasks read "
                f"{', '.join(spec.topics)}, and what comes through a repartition topic does not tell which records it "
                "stems from; wait for a store of the tasks that read the topic, or ask without at_least"
            )
        deadline = Deadline(min(asked.wait_ms, _WAIT_MS_MAX))
        while True:
            committed = self._committed
            position = (await self._read(progress_of, store)).positions.get(asked.topic, 0)
            if position > asked.offset:
                return
            try:
                async with deadline.limit():
                    await committed.wait()
            except TimeoutError:
                raise OffsetNotAvailable(
                    f"the state {asked.store!r} contains the records of {asked.topic}-{asked.partition} below "
                    f"{max(0, position)}, and not {asked.offset} so far"
                ) from None

    def _info(self, store: str) -> StoreInfo:
        info = next((info for info in self.stores() if info.name == store), None)
        if info is None:
            names = ", ".join(info.name for info in self.stores())
            raise NotFound(f"there is no store {store!r}; there are: {names or 'none'}")
        return info
