"""What goes wrong, and how it is mended. No fault may destroy the last sound copy of what was committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.brokers import Broker
from tests.simulation.disk import Disk
from tests.simulation.misfortune import Misfortune

from headrace_common.core.ids import NO_NODE, NodeId, PartitionId

if TYPE_CHECKING:
    from tests.simulation.world import World


class Faults(Misfortune):
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world
        self.broken: NodeId | None = None
        """Who stays broken when the others are healed."""

    # --- brokers ------------------------------------------------------------------------------------------

    def kill(self) -> bool:
        """The process dies; its page cache stays."""
        broker = self._living()
        if broker is None:
            return False
        self._die(broker, power=False)
        self._world.restart_later(broker, None)
        return True

    def power(self) -> bool:
        """One machine loses its power."""
        broker = self._living()
        if broker is None or (self._world.profile.flush_os and not self._others_are_sound(broker)):
            return False
        if self._world.profile.flush_os:
            broker.unsound.update(self._world.store.snapshot.partitions)
        self._die(broker, power=True)
        self._world.restart_later(broker, None)
        return True

    def power_all(self) -> bool:
        """All machines lose it at once; with the page cache trusted, that is a loss."""
        if self._world.profile.flush_os or self._world.rng.random() < 0.5:
            return False
        for broker in self._world.brokers.values():
            if broker.up:
                self._die(broker, power=True)
                self._world.restart_later(broker, None)
        return True

    def damage(self) -> bool:
        """The process dies, and some bytes of its logs rot."""
        return self._destroy(wiped=False)

    def wipe(self) -> bool:
        """It comes back with an empty disk."""
        return self._destroy(wiped=True)

    def _destroy(self, *, wiped: bool) -> bool:
        broker = self._living()
        if broker is None or not self._others_are_sound(broker):
            return False
        broker.unsound.update(self._world.store.snapshot.partitions)
        self._die(broker, power=False)
        if wiped:
            broker.disk, broker.wiped = Disk(None), True
            broker.hurt.clear()
        else:
            self._rot(broker)
        self._world.restart_later(broker, None)
        return True

    def _rot(self, broker: Broker) -> None:
        """Each log is sound up to some batch, and known to have had more."""
        for found in list(broker.disk.list_recovered()):
            rows = list(broker.disk.index(found.log, found.state.log_start, found.log_end))
            end = self._world.rng.choice(rows).base_offset if rows else found.log_end
            broker.disk = broker.disk.cut_short(found.log, max(end, found.state.log_start))
            broker.hurt[found.state.partition] = None

    def clean_restart(self) -> bool:
        """A controlled shutdown."""
        broker = self._living()
        if broker is None or broker.broker_epoch < 0:
            return False
        broker.stop_cleanly()
        return True

    def pause(self) -> bool:
        """The process stands still for a while."""
        broker = self._living()
        if broker is None:
            return False
        broker.paused = True
        self._world.schedule.say("broker", broker.id, "is paused")
        self._world.schedule.after(self._span(), self._go_on, broker, broker.incarnation)
        return True

    def _go_on(self, broker: Broker, incarnation: int) -> None:
        if broker.paused and broker.incarnation == incarnation and not broker.stays_down:
            self._world.schedule.say("broker", broker.id, "goes on")
            broker.go_on()

    def _die(self, broker: Broker, *, power: bool) -> None:
        world, incarnation = self._world, broker.incarnation
        broker.crash(power=power)
        if world.rng.random() < 0.7:
            for controller in world.controllers:
                if world.network.both_ways(broker.id, controller.id):
                    delay = 50 + world.rng.random() * 300
                    world.schedule.after(delay, self._noticed, controller, broker.id, incarnation)

    def _noticed(self, controller: object, broker: NodeId, incarnation: int) -> None:
        for one in self._world.controllers:
            if one is controller and not one.paused:
                one.death_noticed(broker, incarnation)

    def _span(self) -> float:
        """How long something lasts: mostly shorter than a session, at times much longer."""
        rng = self._world.rng
        return 50.0 + rng.random() * rng.choice((300.0, 1_000.0, 4_000.0))

    def _living(self) -> Broker | None:
        living = [b for b in self._world.brokers.values() if b.up]
        return self._world.rng.choice(living) if living else None

    def _others_are_sound(self, broker: Broker) -> bool:
        """Whether fewer than min ISR would be unsound, and somebody sound left, wherever this broker matters."""
        for id, partition in self._world.store.snapshot.partitions.items():
            holders = {*partition.isr, *partition.elr, *partition.last_known_elr}
            if broker.id not in partition.replicas:
                continue  # a replica that is in no set may be about to join
            if len({*partition.isr, *partition.elr}) < self._world.rules_of(partition).min_isr:
                return False  # it was hit already, and does not stand another loss
            others = sorted(holders - {broker.id})
            sound = [h for h in others if id not in self._world.brokers[h].unsound]
            if not sound or len(others) - len(sound) + 1 >= self._world.rules_of(partition).min_isr:
                return False
        return True

    # --- the network --------------------------------------------------------------------------------------

    def cut_pair(self) -> bool:
        """Two brokers do not reach each other."""
        one, other = self._world.rng.sample(sorted(self._world.brokers), 2)
        self._cut([(one, other), (other, one)])
        return True

    def cut_one_way(self) -> bool:
        """One broker does not reach another, who does."""
        one, other = self._world.rng.sample(sorted(self._world.brokers), 2)
        self._cut([(one, other)])
        return True

    def isolate(self) -> bool:
        """A broker reaches nobody, but for clients at times."""
        one = self._world.rng.choice(sorted(self._world.brokers))
        others: list[int] = [b for b in self._world.brokers if b != one] + [c.id for c in self._world.controllers]
        if self._world.rng.random() < 0.5:
            others += list(self._world.producers)
        self._cut([(one, o) for o in others] + [(o, one) for o in others])
        return True

    def cut_controllers(self) -> bool:
        """A broker does not reach the controllers, but everybody else."""
        one = self._world.rng.choice(sorted(self._world.brokers))
        others = [c.id for c in self._world.controllers]
        self._cut([(one, o) for o in others] + [(o, one) for o in others])
        return True

    def _cut(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            self._world.network.cut(source, target)
        self._world.schedule.say("cut", tuple(pairs))
        self._world.schedule.after(self._span(), self._mend, pairs)

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            if self.broken not in (source, target) or self.broken is None:
                self._world.network.mend(source, target)

    # --- controllers --------------------------------------------------------------------------------------

    def pause_controller(self) -> bool:
        """The active controller stands still, and goes on in its old belief."""
        controller = self._active()
        if controller is None:
            return False
        controller.paused = True
        self._world.schedule.say("controller", controller.id, "is paused")
        self._world.schedule.after(self._span(), self._controller_goes_on, controller)
        return True

    def _controller_goes_on(self, controller: object) -> None:
        for one in self._world.controllers:
            if one is controller and one.paused:
                one.paused = False
                self._world.schedule.say("controller", one.id, "goes on")
                inbox, one.inbox = one.inbox, []
                for action, args in inbox:
                    action(*args)

    def cut_store(self) -> bool:
        """The active controller does not reach the store."""
        controller = self._active()
        if controller is None:
            return False
        self._cut([(controller.id, self._world.store_id), (self._world.store_id, controller.id)])
        return True

    def crash_controller(self) -> bool:
        """The active controller dies in the middle of whatever it does."""
        controller = self._active()
        if controller is None:
            return False
        controller.crash()
        return True

    def fence(self) -> bool:
        """The controller fences a broker that lives, by mistake."""
        controller = self._active()
        if controller is None or controller.paused:
            return False
        node = self._world.rng.choice([*controller.mirror.nodes.values()])
        controller.command(f"fence {node.key.id}", controller.fence(node.key.id, node.epoch))
        return True

    def _active(self):
        active = [c for c in self._world.controllers if c.term is not None and not c.paused]
        return self._world.rng.choice(active) if active else None

    # --- operators ----------------------------------------------------------------------------------------

    def reassign(self) -> bool:
        """Other replicas for a partition."""
        world, controller = self._world, self._active()
        if controller is None:
            return False
        id = world.rng.choice(list(world.store.snapshot.partitions))
        target = tuple(world.rng.sample(sorted(world.brokers), world.profile.replicas))
        world.schedule.say("operator: replicas of", id.partition, "become", target)
        controller.command(f"reassign {id.partition}", controller.reassign(id, target))
        return True

    def cancel(self) -> bool:
        """Or not."""
        controller = self._active()
        if controller is None:
            return False
        id = self._world.rng.choice(list(self._world.store.snapshot.partitions))
        controller.command(f"reassign {id.partition}", controller.reassign(id, None))
        return True

    def prefer(self) -> bool:
        """The preferred leader, please; if that leads, it resigns, as one does that cannot read what it stored."""
        controller = self._active()
        if controller is None:
            return False
        id = self._world.rng.choice(list(self._world.store.snapshot.partitions))
        partition = self._world.store.snapshot.partitions[id]
        if partition.leader == partition.replicas[0]:
            return self._world.brokers[partition.leader].resign(id)
        controller.command(f"prefer {id.partition}", controller.prefer(id))
        return True

    def trim(self) -> bool:
        """Delete the oldest records."""
        id = self._world.rng.choice(list(self._world.store.snapshot.partitions))
        leader = self._world.store.snapshot.partitions[id].leader
        if leader == NO_NODE or not self._world.brokers[leader].up or self._world.brokers[leader].paused:
            return False
        self._world.brokers[leader].trim(id)
        return True

    # --- healing ------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Mend everything, or everything but one broker that nobody needs."""
        world = self._world
        self._on = False
        self.broken = self._dispensable() if world.rng.random() < 0.5 else None
        world.schedule.say("everything is mended but", self.broken)
        world.network.mend_all(self.broken)
        for controller in world.controllers:
            if controller.paused:
                self._controller_goes_on(controller)
        for broker in world.brokers.values():
            if broker.id == self.broken:
                self._break(broker)
            elif broker.up and broker.paused:
                broker.go_on()
            # those that are down start by themselves, those that leave come back

    def _break(self, broker: Broker) -> None:
        world = self._world
        broker.stays_down = True
        how = world.rng.choice(("down", "paused", "isolated"))
        if how == "down" or not broker.up:
            if broker.up:
                broker.crash(power=False)
        elif how == "paused":
            broker.paused = True
        else:
            others: list[int] = [b for b in world.brokers if b != broker.id] + [c.id for c in world.controllers]
            for other in others:
                world.network.cut(broker.id, other)
                world.network.cut(other, broker.id)

    def _dispensable(self) -> NodeId | None:
        """A broker without whom every partition can be led and written."""
        world = self._world
        ids = world.store.snapshot.partitions
        candidates = [b for b in world.brokers if all(self._does_without(b, id) for id in ids)]
        return world.rng.choice(candidates) if candidates else None

    def _does_without(self, broker: NodeId, id: PartitionId) -> bool:
        partition = self._world.store.snapshot.partitions[id]
        if broker not in partition.replicas:
            return True
        if partition.adding or partition.removing:
            return False
        others = [r for r in partition.replicas if r != broker]
        min_isr = self._world.rules_of(partition).min_isr
        if min_isr < 2 or len(others) < min_isr:
            return False  # with one in sync anybody may be the last who is, a moment later
        heirs = [*partition.isr, *partition.elr]
        if not heirs:
            return broker not in partition.last_known_elr
        return any(h != broker and self._will_stay(self._world.brokers[h], id) for h in heirs)

    def _will_stay(self, heir: Broker, id: PartitionId) -> bool:
        """Whether it holds everything, and the controller has no reason to doubt that."""
        node = self._world.store.snapshot.nodes.get(heir.id)
        registered = node is not None and node.epoch == heir.broker_epoch and not node.fenced
        return heir.up and registered and not heir.leaving and id not in heir.unsound
