"""A work group in memory, for engines; the real one is in the integration tests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from headrace.errors import ClientClosed
from headrace.work_types import Declaration, GivenItem, WorkChange, WorkItem
from headrace_common.runtime.clock import limit_ms
from headrace_connect_worker.core.placing import NOTHING


class MemoryGroup:
    """
    Items go to whoever has the least weight, and stay. The declaration of the highest version counts; a member gets
    what it has declared too. Nobody gets an item that another has not given up.
    """

    def __init__(self) -> None:
        self.members: list[MemoryMembership] = []
        self.owners: dict[str, MemoryMembership] = {}
        self.epoch = 1_000
        self.moving: set[str] = set()
        """To be given up by its owner."""

    def member(self) -> MemoryMembership:
        return MemoryMembership(self)

    def assign(self) -> None:
        declared = [member for member in self.members if member.declaration is not None]
        if not declared:
            return
        newest = max(declared, key=lambda member: member.version)
        items = {item.id: item.weight for item in newest.items}
        for id, owner in list(self.owners.items()):
            if id not in items or owner not in declared or id not in owner.ids:
                owner.revoke(id)
        for id, weight in items.items():
            if id in self.owners:
                continue
            able = [member for member in declared if id in member.ids]
            if able:
                chosen = min(able, key=lambda member: sum(items.get(one, 0) for one in self.of(member)) + weight)
                self.epoch += 1
                self.owners[id] = chosen
                chosen.give(GivenItem(id, self.epoch))
        self._even_out(declared, items)
        if any(id in member.ids for id in items.keys() - self.owners.keys() for member in declared):
            self.assign()

    def _even_out(self, declared: list[MemoryMembership], items: Mapping[str, int]) -> None:
        """Take from who has more than others, one by one."""
        self.moving &= self.owners.keys()
        fixed = {item.id for member in declared for item in member.items if item.stateful}

        def load(member: MemoryMembership) -> int:
            return sum(items.get(id, 0) for id in self.of(member) if id not in self.moving)

        while True:
            least, most = min(declared, key=load), max(declared, key=load)
            movable = [
                id
                for id in self.of(most)
                if id in least.ids and id not in self.moving | fixed and load(most) - load(least) > items.get(id, 0)
            ]
            if not movable:
                return
            self.moving.add(movable[0])
            most.revoke(movable[0])

    def of(self, member: MemoryMembership) -> list[str]:
        return [id for id, owner in self.owners.items() if owner is member]

    def kill(self, member: MemoryMembership) -> None:
        """It is out, and does not know it yet."""
        self.members.remove(member)
        for id in self.of(member):
            del self.owners[id]
        self.assign()

    def tell_lost(self, member: MemoryMembership) -> None:
        """It hears of it."""
        member.lose()


class MemoryMembership:
    """Satisfies ``Membership``."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self.declaration: Declaration | None = None
        self.refused: list[tuple[str, int]] = []
        self._assigned: list[GivenItem] = []
        self._revoked: set[str] = set()
        self._lost: set[str] = set()
        self._told: set[str] = set()
        self._news = asyncio.Event()
        self._closed = False

    @property
    def items(self) -> tuple[WorkItem, ...]:
        return () if self.declaration is None else self.declaration.items

    @property
    def ids(self) -> set[str]:
        return {item.id for item in self.items}

    @property
    def version(self) -> int:
        assert self.declaration is not None
        return self.declaration.version or 0

    def declare(self, declaration: Declaration) -> None:
        if self.declaration is None:
            self._group.members.append(self)
        self.declaration = declaration
        self._group.assign()

    def retire(self) -> None:
        if self.declaration is not None:
            self.declare(NOTHING)

    def give(self, item: GivenItem) -> None:
        self._assigned.append(item)
        self._news.set()

    def revoke(self, id: str) -> None:
        if id not in self._told:
            self._assigned = [one for one in self._assigned if one.id != id]
            self._group.owners.pop(id, None)
            self._group.moving.discard(id)
            return
        self._revoked.add(id)
        self._news.set()

    def lose(self) -> None:
        self._lost |= self._told
        self._news.set()

    async def poll(self, timeout_ms: float) -> WorkChange | None:
        try:
            async with limit_ms(timeout_ms):
                await self._news.wait()
        except TimeoutError:
            return None
        if self._closed:
            raise ClientClosed("the work group is closed; make a new one")
        self._news.clear()
        assigned, self._assigned = tuple(self._assigned), []
        revoked, self._revoked = frozenset(self._revoked), set()
        lost, self._lost = frozenset(self._lost), set()
        self._told |= {one.id for one in assigned}
        if not (assigned or revoked or lost):
            return None
        return WorkChange(assigned, (), revoked - lost, lost)

    def give_up(self, items: Collection[str]) -> None:
        for id in items:
            self._told.discard(id)
            if self._group.owners.get(id) is self:
                del self._group.owners[id]
        self._group.assign()

    def refuse(self, item: str, token: int) -> None:
        self.refused.append((item, token))

    @property
    def suspended(self) -> bool:
        return False

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        if self in self._group.members:
            self._group.kill(self)
