"""
The metadata store in the memory of one process, with the faults of a real one at the push of a button.

For tests: several controllers may share one. It passes the same conformance suite as etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from headrace_common.runtime.clock import Clock, give_way
from headrace_controller.core.store import (
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Change,
    Changes,
    Committed,
    Compare,
    Conflicted,
    Delete,
    DeleteUnder,
    KeyValue,
    Listing,
    Operation,
    Outcome,
    Put,
    Transaction,
    Unchanged,
)
from headrace_controller.ports import (
    HistoryCompacted,
    HistoryRewound,
    LeaseLost,
    StoreOutcomeUnknown,
    StoreUnavailable,
    TransactionTooLarge,
)


@dataclass(slots=True)
class _Lease:
    ttl_ms: float
    ends_ms: float


class MemoryStore:
    """One shared store. Faults: ``reachable``, ``answers_lost``, ``compact``, ``disconnect``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.revision = 1
        self.reachable = True
        """False: every call fails and every watch breaks."""
        self.answers_lost = 0
        """So many of the next transactions happen, but their answer is lost."""
        self.commits = 0
        """Transactions that happened."""
        self._items: dict[str, KeyValue] = {}
        self._history: list[Changes] = []
        self._compacted = 0
        self._leases: dict[int, _Lease] = {}
        self._leased: dict[str, int] = {}
        self._last_lease = 0
        self._breaks = 0
        self._moved = asyncio.Condition()

    async def expire_leases(self) -> None:
        """End the leases whose time is over; as etcd does by itself, so call it whenever the clock moved."""
        now = self._clock.monotonic_ms()
        for lease in [k for k, v in self._leases.items() if v.ends_ms <= now]:
            await self._end(lease)

    async def compact(self) -> None:
        """Forget the history up to now."""
        self._compacted = self.revision
        self._history = []

    async def disconnect(self) -> None:
        """Break every watch, as a restart of the store does."""
        async with self._moved:
            self._breaks += 1
            self._moved.notify_all()

    async def list_all(self) -> Listing:
        await self._reach()
        return Listing(self.revision, tuple(self._items[k] for k in sorted(self._items)))

    async def get(self, key: str) -> KeyValue | None:
        await self._reach()
        return self._items.get(key)

    async def commit(self, transaction: Transaction) -> Outcome:
        most = max(len(transaction.operations), len(transaction.compares))
        if most > OPERATIONS_MAX or transaction.size > TRANSACTION_BYTES_MAX:
            raise TransactionTooLarge(f"{most} operations, {transaction.size} bytes")
        await self._reach()
        if not all(self._holds(c) for c in transaction.compares):
            found = {c.key: self._items[c.key] for c in transaction.compares if c.key in self._items}
            return Conflicted(self.revision, found)
        for operation in transaction.operations:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise LeaseLost(f"lease {operation.lease} is gone")
        await self._write(transaction.operations)
        self.commits += 1
        if self.answers_lost:
            self.answers_lost -= 1
            raise StoreOutcomeUnknown("the answer was lost; the change may have happened, look before repeating it")
        return Committed(self.revision)

    @asynccontextmanager
    async def watch(self, from_revision: int) -> AsyncIterator[AsyncIterator[Changes]]:
        await self._reach()
        if from_revision <= self._compacted:
            raise HistoryCompacted(f"no changes before revision {self._compacted} any more")
        if self.revision < from_revision - 1:
            raise HistoryRewound(f"the store is at revision {self.revision}, {from_revision - 1} was seen")
        yield self._changes(from_revision, self._breaks)

    async def grant_lease(self, ttl_s: int) -> int:
        await self._reach()
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(ttl_s * 1_000, self._clock.monotonic_ms() + ttl_s * 1_000)
        return self._last_lease

    async def keep_lease(self, lease: int) -> None:
        await self._reach()
        await self.expire_leases()
        held = self._leases.get(lease)
        if held is None:
            raise LeaseLost(f"lease {lease} has expired")
        held.ends_ms = self._clock.monotonic_ms() + held.ttl_ms

    async def revoke_lease(self, lease: int) -> None:
        await self._reach()
        await self._end(lease)

    async def _reach(self) -> None:
        await give_way()
        if not self.reachable:
            raise StoreUnavailable("the store cannot be reached; nothing was changed, try again when it is back")

    def _holds(self, compare: Compare) -> bool:
        found = self._items.get(compare.key)
        if isinstance(compare, Unchanged):
            return (0 if found is None else found.mod_revision) == compare.mod_revision
        return (0 if found is None else found.create_revision) == compare.create_revision

    async def _end(self, lease: int) -> None:
        if self._leases.pop(lease, None) is None:
            return
        keys = [k for k, held in self._leased.items() if held == lease]
        if keys:
            await self._write(tuple(Delete(k) for k in keys))

    async def _write(self, operations: tuple[Operation, ...]) -> None:
        revision = self.revision + 1
        changes = [change for o in operations for change in self._apply(o, revision)]
        if not changes:
            return
        self.revision = revision
        self._history.append(Changes(revision, tuple(changes)))
        async with self._moved:
            self._moved.notify_all()

    def _apply(self, operation: Operation, revision: int) -> list[Change]:
        match operation:
            case Put(key, value, lease):
                old = self._items.get(key)
                created = revision if old is None else old.create_revision
                current = KeyValue(key, value, created, revision)
                self._items[key] = current
                self._leased.pop(key, None)
                if lease:
                    self._leased[key] = lease
                return [Change(key, current, revision)]
            case Delete(key):
                return self._remove([key], revision)
            case DeleteUnder(prefix):
                assert prefix, "never everything"
                return self._remove(sorted(k for k in self._items if k.startswith(prefix)), revision)

    def _remove(self, keys: list[str], revision: int) -> list[Change]:
        there = [k for k in keys if self._items.pop(k, None) is not None]
        for key in there:
            self._leased.pop(key, None)
        return [Change(key, None, revision) for key in there]

    async def _changes(self, from_revision: int, breaks: int) -> AsyncIterator[Changes]:
        due = from_revision
        while True:
            async with self._moved:
                while self.revision < due and not self._broken(breaks):
                    await self._moved.wait()
            if self._broken(breaks):
                raise StoreUnavailable("the watch broke; it is resumed")
            if due <= self._compacted:
                raise HistoryCompacted(f"no changes before revision {self._compacted} any more")
            batches = [b for b in self._history if b.revision >= due]
            due = self.revision + 1
            if batches:
                yield replace(batches[-1], changes=tuple(c for b in batches for c in b.changes))

    def _broken(self, breaks: int) -> bool:
        return self._breaks != breaks or not self.reachable
