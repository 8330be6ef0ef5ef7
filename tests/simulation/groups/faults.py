"""What goes wrong among groups, and how it is mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.groups.consumers import Consumer
from tests.simulation.groups.coordinators import CoordinatorNode
from tests.simulation.misfortune import Misfortune

from headrace_coordinator.core.events import CommitAsked, GroupDeletionAsked, OffsetsDeletionAsked, OffsetToCommit
from headrace_coordinator.core.values import Moment

if TYPE_CHECKING:
    from tests.simulation.groups.world import World

CONTROLLER_NOTICES_MS = 300.0


class Faults(Misfortune):
    """The faults of one world; each says whether it happened."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world

    # --- coordinators -----------------------------------------------------------------------------------------

    def _coordinator(self) -> CoordinatorNode | None:
        up = [c for c in self._world.coordinators if c.up and not c.paused]
        return self._world.rng.choice(up) if up else None

    def kill_coordinator(self) -> bool:
        """The process dies; connections to it break at once, and the controller notices."""
        return self._kill_coordinator(power=False)

    def power_coordinator(self) -> bool:
        """Its machine is off: nobody hears anything."""
        return self._kill_coordinator(power=True)

    def _kill_coordinator(self, *, power: bool) -> bool:
        node, world = self._coordinator(), self._world
        if node is None:
            return False
        world.say("coordinator", node.id, "dies")
        node.die()
        if not power:
            world.break_links(node)
            world.schedule.after(CONTROLLER_NOTICES_MS * world.rng.random(), world.controller.noticed, node)
        world.schedule.after(200.0 + world.rng.random() * 6_000.0, self._restart, node, node.incarnation)
        return True

    def _restart(self, node: CoordinatorNode, incarnation: int) -> None:
        if not node.up and node.incarnation == incarnation:
            self._world.controller.alive.pop(node.id, None)
            self._world.controller.settle()
            node.start()

    def pause_coordinator(self) -> bool:
        """It stands still, and goes on believing what it believed."""
        node = self._coordinator()
        if node is None:
            return False
        ms = self._world.rng.choice((300.0, 2_000.0, 6_000.0, 15_000.0)) * (0.5 + self._world.rng.random())
        self._world.say("coordinator", node.id, "is paused for", int(ms))
        node.paused = True
        self._world.schedule.after(ms, self._go_on, node, node.incarnation)
        return True

    def _go_on(self, node: CoordinatorNode | Consumer, incarnation: int) -> None:
        if node.up and node.paused and node.incarnation == incarnation:
            self._world.say(type(node).__name__, node.id, "goes on")
            node.go_on()

    def drain_coordinator(self) -> bool:
        """A controlled shutdown moves its shards away; some time later it takes part again."""
        node, controller = self._coordinator(), self._world.controller
        if node is None or node.id in controller.banned:
            return False
        controller.banned.add(node.id)
        controller.settle()
        self._world.schedule.after(500.0 + self._world.rng.random() * 5_000.0, self._undrain, node.id)
        return True

    def _undrain(self, number: int) -> None:
        self._world.controller.banned.discard(number)
        self._world.controller.settle()

    def cut_controller(self) -> bool:
        """A coordinator does not reach the controller: it goes on believing."""
        node = self._coordinator()
        return node is not None and self._cut(node.id, self._world.controller.id, one_way=False)

    def cut_brokers(self) -> bool:
        """A coordinator does not reach its logs."""
        node = self._coordinator()
        return node is not None and self._cut(node.id, self._world.brokers.id, one_way=True)

    def cut_members(self) -> bool:
        """A consumer and a coordinator do not reach each other, or one way only."""
        node, consumer = self._coordinator(), self._consumer()
        if node is None or consumer is None:
            return False
        return self._cut(consumer.id, node.id, one_way=self._world.rng.random() < 0.5)

    def _cut(self, one: int, other: int, *, one_way: bool) -> bool:
        network = self._world.network
        pairs = [(one, other), (other, one)]
        for source, target in pairs[:1] if one_way and self._world.rng.random() < 0.5 else pairs:
            network.cut(source, target)
        ms = self._world.rng.choice((500.0, 4_000.0, 12_000.0))
        self._world.say("cut between", one, other, "for", int(ms))

        def mend() -> None:
            for source, target in pairs:
                network.mend(source, target)

        self._world.schedule.after(ms, mend)
        return True

    def lossy(self) -> bool:
        """Connections break all the time, for a while."""
        self._world.lossy_until = self._world.schedule.now + 3_000.0
        return True

    # --- logs -------------------------------------------------------------------------------------------------

    def change_leader(self) -> bool:
        """A shard's partition has another leader."""
        self._world.rng.choice(list(self._world.brokers.logs.values())).change_leader()
        return True

    def stall_log(self) -> bool:
        """Too few replicas: nothing is committed for a while."""
        log = self._world.rng.choice(list(self._world.brokers.logs.values()))
        log.stall(self._world.rng.choice((300.0, 3_000.0, 8_000.0)))
        return True

    # --- consumers --------------------------------------------------------------------------------------------

    def _consumer(self) -> Consumer | None:
        up = [c for c in self._world.consumers if c.up and not c.paused]
        return self._world.rng.choice(up) if up else None

    def kill_consumer(self) -> bool:
        """kill -9; most come back, static ones under their name."""
        consumer, world = self._consumer(), self._world
        if consumer is None:
            return False
        world.say("consumer", consumer.id, "is killed")
        consumer.die()
        world.schedule.after(100.0 + world.rng.random() * 8_000.0, self._start_again, consumer, consumer.incarnation)
        return True

    def _start_again(self, consumer: Consumer, incarnation: int) -> None:
        if not consumer.up and consumer.incarnation == incarnation and not consumer.gone:
            consumer.start()

    def close_consumer(self) -> bool:
        """It closes as it should; most come back."""
        consumer, world = self._consumer(), self._world
        if consumer is None or consumer.closing:
            return False
        consumer.closing = True
        world.schedule.after(
            1_000.0 + world.rng.random() * 9_000.0, self._start_again, consumer, 1 + consumer.incarnation
        )
        return True

    def pause_consumer(self) -> bool:
        """It stands still, longer than its session now and then."""
        consumer = self._consumer()
        if consumer is None:
            return False
        consumer.paused = True
        ms = self._world.rng.choice((1_000.0, 5_000.0, 14_000.0))
        self._world.say("consumer", consumer.id, "is paused for", int(ms))
        self._world.schedule.after(ms, self._go_on, consumer, consumer.incarnation)
        return True

    def stuck_calls(self) -> bool:
        """Its calls hang until they time out, and it stands still meanwhile, now and then."""
        consumer, rng = self._consumer(), self._world.rng
        if consumer is None:
            return False
        consumer.stuck_until = self._world.schedule.now + rng.choice((1_000.0, 4_000.0))
        if rng.random() < 0.5:
            consumer.paused = True
            ms = rng.choice((4_000.0, 9_000.0, 13_000.0))
            self._world.schedule.after(ms, self._go_on, consumer, consumer.incarnation)
        return True

    def slow_handler(self) -> bool:
        """It does not poll for a while, which is too long now and then."""
        consumer = self._consumer()
        if consumer is None:
            return False
        consumer.silent_until = self._world.schedule.now + self._world.rng.choice((2_000.0, 8_000.0, 20_000.0))
        return True

    def join(self) -> bool:
        """One more."""
        if len([c for c in self._world.consumers if not c.gone]) >= self._world.profile.consumers_max:
            return False
        self._world.add_consumer(self._world.rng.choice(self._world.profile.groups)).start()
        return True

    def leave(self) -> bool:
        """One less, for good: killed or closed."""
        consumer = self._consumer()
        if consumer is None or len([c for c in self._world.consumers if c.group_id == consumer.group_id]) < 2:
            return False
        consumer.gone = True
        if self._world.rng.random() < 0.5:
            consumer.die()
        else:
            consumer.closing = True
        return True

    def twin(self) -> bool:
        """A second process with the instance id of one that lives."""
        static = [c for c in self._world.consumers if c.up and c.settings.group_instance_id is not None]
        if not static or len([c for c in self._world.consumers if not c.gone]) >= self._world.profile.consumers_max:
            return False
        twin = self._world.twin_of(self._world.rng.choice(static))
        twin.start()
        twin.gone = True
        self._world.schedule.after(6_000.0, self._close_if_up, twin)
        return True

    @staticmethod
    def _close_if_up(consumer: Consumer) -> None:
        if consumer.up:
            consumer.closing = True

    def break_stream(self) -> bool:
        """A connection breaks."""
        consumer = self._consumer()
        if consumer is None or consumer.link is None:
            return False
        consumer.link.break_()
        return True

    # --- topics and administration ----------------------------------------------------------------------------

    def create_topic(self) -> bool:
        """One more."""
        if len(self._world.controller.image.topics) > 5:
            return False
        self._world.controller.create_topic()
        return True

    def grow_topic(self) -> bool:
        """More partitions."""
        sizes = [info.partitions for info in self._world.controller.image.topics.values()]
        if sum(sizes) > 30:
            return False
        self._world.controller.grow_topic()
        return True

    def delete_topic(self) -> bool:
        """One less."""
        return self._world.rng.random() < 0.3 and self._world.controller.delete_topic()

    def admin(self) -> bool:
        """An operator sets, or forgets, positions; refused where there are members."""
        world, rng = self._world, self._world.rng
        group_id = rng.choice((*[g.name for g in world.profile.groups], "admins", "admins"))
        topic = rng.choice(sorted(world.controller.image.topics))
        number = rng.randrange(world.controller.image.topics[topic].partitions)
        offset, mark, dice = rng.randrange(50), world.mark(), rng.random()

        def make(ref: object, at: Moment) -> CommitAsked | OffsetsDeletionAsked | GroupDeletionAsked:
            if dice < 0.1:
                return GroupDeletionAsked(group_id, ref, at)
            if dice < 0.3:
                return OffsetsDeletionAsked(group_id, ref, at, ((topic, (number,)),))
            row = OffsetToCommit(topic, number, offset, -1, mark)
            return CommitAsked(group_id, ref, at, "", None, -1, (row,))

        world.operator.ask(group_id, make)
        return True

    # --- the end ----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again."""
        self._on = False
        world = self._world
        world.lossy_until = 0.0
        world.network.mend_all()
        for log in world.brokers.logs.values():
            log.stalled_until = 0.0
        world.controller.banned.clear()
        for node in (*world.coordinators, *world.consumers):
            if node.up and node.paused:
                node.go_on()
        for node in world.coordinators:
            self._restart(node, node.incarnation)
        for consumer in world.consumers:
            consumer.silent_until = consumer.stuck_until = 0.0
            if not consumer.up and not consumer.gone:
                consumer.start()
        world.controller.settle()
