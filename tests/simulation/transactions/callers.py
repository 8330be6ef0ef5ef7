"""
Processes that ask coordinators and partition leaders: calls that are lost, late, and sometimes heard twice.

A second copy of a request may arrive long after its first one was answered, wherever the leader or the owner is by
then: an old connection, a proxy, a client that was paused between two attempts. Nobody hears what is said to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.transactions.processes import Process, Promise, Script

from headrace_common.core.errors import HeadraceError, NotLeader
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

CALL_MS = 1_500.0
Make = Callable[[Promise, Any], Any]
"""An event, made of the reference for its answer and of the node's moment."""


class Caller(Process):
    """Who asks."""

    world: World

    def to_shard(self, number: int, make: Make, timeout_ms: float = CALL_MS) -> Script:
        """Ask whoever has a shard now, as far as can be found out; one attempt."""
        world = self.world
        node = yield self.call(world.logs, world.controller.find_shard, number, timeout_ms=1_000.0)
        answer = self.call(node, node.ask, number, make, timeout_ms=timeout_ms)
        self._doubled(lambda: _ask_shard(world, number, make))
        return (yield answer)

    def to_leader(self, id: PartitionId, name: str, *args: object, timeout_ms: float = CALL_MS) -> Script:
        """Ask whoever leads a partition, as far as some broker knows; one attempt."""
        world = self.world
        leader = world.leader_by_hearsay(id)
        if leader == NO_NODE:
            yield 20.0
            raise NotLeader("nobody leads the partition")
        broker = world.brokers[leader]
        answer = self.call(broker, getattr(broker, name), id, *args, timeout_ms=timeout_ms)
        self._doubled(lambda: _ask_leader(world, id, name, args))
        return (yield answer)

    def _doubled(self, again: Callable[[], None]) -> None:
        world, rng = self.world, self.world.rng
        if world.calm or rng.random() >= world.profile.doubled:
            return
        world.counts["requests doubled"] += 1
        world.schedule.after(rng.random() * rng.choice((30.0, 1_000.0, 8_000.0)), again)

    def again(self, attempt: Callable[[], Script], until_ms: float, pause_ms: float = 25.0) -> Script:
        """Repeat while errors are retriable; ``until_ms`` is on this process's clock."""
        while True:
            try:
                return (yield from attempt())
            except HeadraceError as error:
                if not error.retriable or self.mono >= until_ms:
                    raise
            yield pause_ms * (0.5 + self.world.rng.random())
            pause_ms = min(pause_ms * 1.6, 400.0)


def _ask_shard(world: World, number: int, make: Make) -> None:
    node = world.owner_of(number)
    if node is not None and node.up:
        node.meet(node.ask, Promise(), number, make)


def _ask_leader(world: World, id: PartitionId, name: str, args: tuple[object, ...]) -> None:
    leader = world.store.snapshot.partitions[id].leader
    broker = world.brokers.get(NodeId(leader))
    if broker is not None and broker.up:
        broker.meet(getattr(broker, name), Promise(), id, *args)
