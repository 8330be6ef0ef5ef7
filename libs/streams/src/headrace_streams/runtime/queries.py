"""Answers questions about state: from the cold tiers of tasks that this worker has, so committed state only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace_common.core.errors import CoordinatorNotAvailable, HeadraceError, NotCoordinator, NotFound
from headrace_streams.ports import StoreInfo
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.owned import Owned


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
            StoreInfo(store, part.name, assembly.tasks_of(part)) for part in assembly.parts for store in part.stores
        ]

    async def rows(self, store: str, partition: int, key: bytes | None, *, stale: bool) -> pa.Table | None:
        """
        Rows of a store in one task; None: it has nothing that can be shown.

        Args:
            stale: a task that is only followed here will do.

        Raises:
            NotFound: the app has no such store.
            NotCoordinator: the task is elsewhere, or is being taken over.
        """
        info = next((info for info in self.stores() if info.name == store), None)
        if info is None:
            names = ", ".join(info.name for info in self.stores())
            raise NotFound(f"there is no store {store!r}; there are: {names or 'none'}")
        task = f"{info.sub_topology}/{partition}"
        owned = self.owned.get(task) or (self.followed.get(task) if stale else None)
        if owned is None or owned.store is None:
            raise NotCoordinator(f"task {task} is not at this worker now")
        assert self.assembled is not None
        try:
            found: pa.Table | None = await self._read(
                self.assembled.assembly.read, store, partition, owned.store.cold(store), key
            )
        except HeadraceError as error:
            if task in self.owned:
                raise
            raise NotCoordinator(f"task {task} has just left this worker") from error
        return found
