"""
Who leads the partitions and who is in sync: a controller in a few lines, which the simulated brokers ask.

Elections have a simulation of their own (``tests.simulation``); here they are sound and simple: one controller that is
always there, leaders out of the ISR only, an ISR that keeps its last member. Whoever is silent is fenced some time
later; brokers hear of images late, and not all of them of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.controllers import Joining, _bytes
from tests.simulation.store import Snapshot

from headrace_common.core.errors import IneligibleReplica, StaleBrokerEpoch
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId
from headrace_common.core.image import Node, NodeKey, Partition, Role
from headrace_controller.core.isr_changes import Proposal

if TYPE_CHECKING:
    from tests.simulation.transactions.brokers import LogBroker
    from tests.simulation.transactions.world import World

TICK_MS = 150.0
SILENCE_MS = 700.0
Reply = Callable[[object], None]


class Elections:
    """The controller and its store in one."""

    def __init__(self, number: int, world: World, partitions: dict[PartitionId, Partition]) -> None:
        self.id = number
        self.up, self.paused, self.incarnation = True, False, 0
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.world = world
        self.snapshot = Snapshot(0, {}, partitions, {}, 0)
        self._heard: dict[NodeId, float] = {}

    # --- what brokers ask -------------------------------------------------------------------------------------

    def call(self, _name: str, operation: Callable[[Elections, Reply], object], reply: Reply) -> None:
        """An RPC."""
        operation(self, reply)

    def register(self, joining: Joining, reply: Reply) -> None:
        """A process of a broker is there: what the one before it had is over."""
        me, epoch = joining.broker, self.snapshot.epoch + 1
        self.fence(me)
        endpoint = Endpoint("10.0.0.1", 9092)
        node = Node(NodeKey(Role.BROKER, me), endpoint, _bytes(joining.incarnation), epoch, fenced=False)
        self._heard[me] = self.world.schedule.now
        self._change(nodes={**self.snapshot.nodes, me: node}, epoch=epoch)
        self._elect()
        reply(epoch)

    def alter(self, broker: NodeId, broker_epoch: int, wanted: Proposal, reply: Reply) -> None:
        """A leader proposes who is in sync."""
        partition, nodes = self.snapshot.partitions[wanted.id], self.snapshot.nodes
        node, now = nodes.get(broker), (partition.leader, partition.leader_epoch, partition.partition_epoch)
        if node is None or node.epoch != broker_epoch:
            reply(StaleBrokerEpoch("register again"))
        elif now != (broker, wanted.leader_epoch, wanted.partition_epoch):
            reply(partition)
        elif any(self._gone(member, epoch) for member, epoch in wanted.isr.items()):
            reply(IneligibleReplica("a member is not there any more"))
        else:
            self._put(partition, isr=tuple(wanted.isr))
            reply(self.snapshot.partitions[wanted.id])

    def deleted(self, _broker: NodeId, _id: PartitionId) -> None:
        """Nothing is deleted here."""

    def _gone(self, member: NodeId, epoch: int | None) -> bool:
        node = self.snapshot.nodes.get(member)
        return node is None or node.fenced or (epoch is not None and node.epoch != epoch)

    # --- what it does by itself -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Hear who lives, fence who is silent."""
        world = self.world
        world.schedule.after(TICK_MS, self.tick)
        for broker in world.brokers.values():
            known = self.snapshot.nodes.get(broker.id)
            if broker.up and not broker.paused and world.network.both_ways(self.id, broker.id):
                if known is not None and broker.broker_epoch == known.epoch and not known.fenced:
                    self._heard[broker.id] = world.schedule.now
                elif known is not None and broker.broker_epoch >= 0:
                    broker.stale(broker.broker_epoch)
            if known is not None and not known.fenced and world.schedule.now - self._heard[broker.id] > SILENCE_MS:
                self.fence(broker.id)
        self._elect()

    def fence(self, broker: NodeId) -> None:
        """It leads nothing and is in sync with nothing, but where it is the last that was."""
        node = self.snapshot.nodes.get(broker)
        if node is None or node.fenced:
            return
        self.world.say("broker", broker, "is fenced")
        self._change(nodes={**self.snapshot.nodes, broker: replace(node, fenced=True)})
        for partition in list(self.snapshot.partitions.values()):
            isr = tuple(member for member in partition.isr if member != broker) or partition.isr
            if partition.leader == broker:
                self._put(partition, isr=isr, leader=NO_NODE, leader_epoch=partition.leader_epoch + 1)
            elif isr != partition.isr:
                self._put(partition, isr=isr)
        self._elect()

    def move_leader(self, id: PartitionId) -> bool:
        """Another member of the ISR leads."""
        partition = self.snapshot.partitions[id]
        others = [m for m in partition.isr if m != partition.leader and not self.snapshot.nodes[m].fenced]
        if partition.leader == NO_NODE or not others:
            return False
        leader = self.world.rng.choice(others)
        self._put(partition, leader=leader, leader_epoch=partition.leader_epoch + 1)
        return True

    def _elect(self) -> None:
        for partition in list(self.snapshot.partitions.values()):
            able = [m for m in partition.isr if m in self.snapshot.nodes and not self.snapshot.nodes[m].fenced]
            if partition.leader == NO_NODE and able:
                leader = self.world.rng.choice(able)
                self._put(partition, leader=leader, leader_epoch=partition.leader_epoch + 1)

    # --- images -----------------------------------------------------------------------------------------------

    def _put(self, partition: Partition, **fields: object) -> None:
        new = replace(partition, partition_epoch=partition.partition_epoch + 1, **fields)
        if new.leader != partition.leader:
            self.world.counts["leader changes"] += 1
            self.world.say("partition", new.id.partition, "led by", new.leader, "epoch", new.leader_epoch, new.isr)
        self._change(partitions={**self.snapshot.partitions, new.id: new})

    def _change(self, **fields: object) -> None:
        old = self.snapshot
        self.snapshot = replace(old, revision=old.revision + 1, **fields)
        self.world.invariants.stored(old, self.snapshot)
        for broker in self.world.brokers.values():
            if broker.up:
                self.offer(broker)

    def offer(self, broker: LogBroker) -> None:
        """The newest image is on its way."""
        if broker.image.revision < self.snapshot.revision:
            world = self.world
            delay = world.delay()
            if not world.calm and world.rng.random() < 0.05:
                delay += world.rng.random() * 1_500.0
            world.schedule.after(delay, self._arrives, broker, broker.incarnation, self.snapshot)

    def _arrives(self, broker: LogBroker, incarnation: int, snapshot: Snapshot) -> None:
        if not broker.up or broker.incarnation != incarnation or snapshot.revision <= broker.image.revision:
            return
        if broker.paused:
            broker.inbox.append((self._arrives, (broker, incarnation, snapshot)))
        elif self.world.network.reaches(self.id, broker.id):
            broker.take(snapshot)
