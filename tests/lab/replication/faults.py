"""What goes wrong, and how it is mended. No fault may destroy the last sound copy of what was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.lab.replication.operators import Operators

from headrace_common.core.configs import min_isr_in_force
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Partition

if TYPE_CHECKING:
    from tests.lab.replication.world import World


LOOK_S = 0.02
LOOKS_MAX = 75
"""After so many looks nobody is waited for any more."""


class Faults(Operators):
    """The faults of one world: one method after the other, each says whether it happened."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cluster = world.cluster
        self.unsound: dict[int, set[PartitionId]] = {}
        """Logs of which a broker lost something, until it is in sync again."""
        self._on = True

    async def run(self) -> None:
        """Until ``heal``."""
        world = self._world
        while self._on:
            await asyncio.sleep(world.profile.fault_every_s * (0.3 + 1.4 * world.random.random()))
            if self._on:
                name = world.random.choice(world.profile.faults)
                if getattr(self, name)():
                    world.counts[f"fault {name}"] += 1

    def heal(self) -> None:
        """Mend everything; who is down comes back by itself."""
        self._on = False
        self._world.say("everything is mended")
        self._cluster.heal()
        self._cluster.store.reachable = True
        for role, count in (("broker", self._world.profile.brokers), ("controller", self._world.profile.controllers)):
            for number in range(1, count + 1):
                self._go_on(role, number)

    # --- brokers ------------------------------------------------------------------------------------------

    def kill(self) -> bool:
        """The process dies; its page cache stays."""
        return self._kill(self._living(), power=False)

    def topple(self) -> bool:
        """
        Whoever leads a partition dies, and some of those that come after it, soon after they have begun to lead.
        """
        self._world.spawn(self._topple(self._partition(), self._world.random.randint(1, 3)))
        return True

    async def _topple(self, id: PartitionId, times: int) -> None:
        random, toppled = self._world.random, -1
        for _ in range(times):
            for _ in range(LOOKS_MAX):
                leader = self._leading(id)
                if leader is not None and leader[1] > toppled:
                    break
                await asyncio.sleep(LOOK_S)
            else:
                return
            toppled = leader[1]
            if random.random() < 0.6:
                self._keep_apart(id, leader[0])
            await asyncio.sleep(random.random() * random.choice((0.02, 0.2, 0.4)))
            if not self._kill(leader[0], power=False):
                return

    def _keep_apart(self, id: PartitionId, leader: int) -> None:
        """Some of its followers hear nothing more of a leader, so that their logs part."""
        others = [one for one in self._world.ghost.partitions()[id].replicas if one != leader]
        apart = self._world.random.sample(others, self._world.random.randint(1, len(others))) if others else []
        self._cut([(f"broker-{leader}", f"broker-{one}") for one in apart], 0.6)

    def _leading(self, id: PartitionId) -> tuple[int, int] | None:
        """Who leads, as it knows itself, and the leader epoch."""
        for broker in self._running():
            process = self._world.ghost.process_of(broker)
            replica = None if process is None else process.replicas.get(id)
            epoch = None if replica is None else replica.core.leader_epoch
            if epoch is not None and epoch == self._world.ghost.partitions()[id].leader_epoch:
                return broker, epoch
        return None

    def power(self) -> bool:
        """One machine loses its power; where the page cache is trusted that is a loss."""
        broker = self._living()
        if broker is None or (self._world.profile.flush_os and not self._others_are_sound(broker)):
            return False
        if self._world.profile.flush_os:
            self.unsound.setdefault(broker, set()).update(self._world.ghost.partitions())
        return self._kill(broker, power=True)

    def power_all(self) -> bool:
        """All machines lose their power at once, or all processes die."""
        return self._world.random.random() < 0.6 and self._kill_all()

    def strand(self) -> bool:
        """A follower is away until it has left the ISR; then the others die at once, and it hears who comes back."""
        id = self._partition()
        pair = self._pair_in_sync(id)
        if pair is not None:
            self._world.spawn(self._strand(id, *pair))
        return pair is not None

    async def _strand(self, id: PartitionId, leader: int, follower: int) -> None:
        both = self._both_ways(leader, follower)
        self._cut(both, LOOKS_MAX * LOOK_S + 1.0)
        for _ in range(LOOKS_MAX):
            if follower not in self._world.ghost.partitions()[id].isr:
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(0.05 + 0.4 * self._world.random.random())
        self._kill_all(spared=follower)
        self._mend(both)

    def _kill_all(self, spared: int | None = None) -> bool:
        power = not self._world.profile.flush_os and self._world.random.random() < 0.7
        return sum(self._kill(broker, power=power) for broker in self._running() if broker != spared) > 0

    def damage(self) -> bool:
        """The process dies, and some bytes of its logs rot."""
        broker = self._living()
        if broker is None or not self._others_are_sound(broker):
            return False
        self._destroy(broker)
        self._cluster.disk(broker).rot()
        return True

    def wipe(self) -> bool:
        """It comes back with an empty disk."""
        broker = self._living()
        if broker is None or not self._others_are_sound(broker):
            return False
        self._destroy(broker)
        self._cluster.disk(broker).wipe()
        return True

    def _destroy(self, broker: int) -> None:
        self._world.say(f"what broker {broker} has is destroyed")
        self.unsound.setdefault(broker, set()).update(self._world.ghost.partitions())
        self._kill(broker, power=False)

    def clean_restart(self) -> bool:
        """A controlled shutdown."""
        broker = self._living()
        if broker is None:
            return False
        self._world.say(f"broker {broker} is told to stop")
        stopping = asyncio.ensure_future(self._cluster.stop(broker))
        stopping.add_done_callback(lambda _: self._start_later("broker", broker))
        return True

    def pause(self) -> bool:
        """The process stands still for a while."""
        broker = self._living()
        if broker is None:
            return False
        self._world.say(f"broker {broker} is paused")
        self._cluster.pause(broker)
        self._later(self._span(), lambda: self._go_on("broker", broker))
        return True

    def _kill(self, broker: int | None, *, power: bool) -> bool:
        if broker is None or not self._cluster.runs(broker):
            return False
        self._world.say(f"broker {broker} {'loses its power' if power else 'is killed'}")
        self._cluster.kill(broker, power=power)
        self._start_later("broker", broker)
        return True

    def _start_later(self, role: str, number: int) -> None:
        random = self._world.random

        def start() -> None:
            if not self._cluster.runs(**{role: number}):
                self._world.say(f"{role} {number} starts")
                self._cluster.restart(**{role: number})

        self._later(0.03 + random.random() * random.choice((0.2, 1.5)), start)

    def _go_on(self, role: str, number: int) -> None:
        if self._cluster.runs(**{role: number}):
            self._cluster.resume(**{role: number})

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)

    def _span(self) -> float:
        """How long something lasts: mostly shorter than a session, at times much longer."""
        random = self._world.random
        return 0.05 + random.random() * random.choice((0.3, 1.0, 4.0))

    def _running(self) -> list[int]:
        return [broker for broker in self._world.brokers if self._cluster.runs(broker)]

    def _living(self) -> int | None:
        running = self._running()
        return self._world.random.choice(running) if running else None

    def _others_are_sound(self, broker: int) -> bool:
        """Whether fewer than min ISR would be unsound, and somebody sound left, wherever this broker matters."""
        for id, partition in self._world.ghost.partitions().items():
            if broker not in partition.replicas:
                continue
            holders = {*partition.isr, *partition.elr, *partition.last_known_elr}
            min_isr = self._min_isr(partition)
            if len({*partition.isr, *partition.elr}) < min_isr:
                return False  # it was hit already, and does not stand another loss
            others = sorted(holders - {NodeId(broker)})
            sound = [one for one in others if id not in self.unsound.get(one, ())]
            if not sound or len(others) - len(sound) + 1 >= min_isr:
                return False
        return True

    def _min_isr(self, partition: Partition) -> int:
        wanted, count = self._world.profile.min_isr, len(partition.replicas)
        return min_isr_in_force(wanted, count, adding=len(partition.adding), removing=len(partition.removing))

    # --- the network --------------------------------------------------------------------------------------

    def cut_pair(self) -> bool:
        """Two brokers do not reach each other."""
        one, other = self._pair()
        return self._cut([(one, other), (other, one)])

    def cut_one_way(self) -> bool:
        """One broker does not reach another, who does."""
        return self._cut([self._pair()])

    def estrange(self) -> bool:
        """A follower does not hear its leader until it has left the ISR, and comes back; at times to a slow store."""
        random = self._world.random
        span_s = 0.4 + random.random() * random.choice((0.4, 2.0))
        pair = self._pair_in_sync(self._partition())
        if pair is None:
            return False
        self._cut(self._both_ways(*pair), span_s)
        if random.random() < 0.5:
            self._world.store_slow_until_s = asyncio.get_running_loop().time() + span_s + 1.0
        return True

    def _pair_in_sync(self, id: PartitionId) -> tuple[int, int] | None:
        """A leader, and one of its followers in the ISR; None: there is none."""
        leader = self._leading(id)
        others = [one for one in self._world.ghost.partitions()[id].isr if leader is not None and one != leader[0]]
        return None if leader is None or not others else (leader[0], self._world.random.choice(others))

    def _both_ways(self, one: int, other: int) -> list[tuple[str, str]]:
        return [(f"broker-{one}", f"broker-{other}"), (f"broker-{other}", f"broker-{one}")]

    def isolate(self) -> bool:
        """A broker reaches nobody, but for clients at times."""
        one = f"broker-{self._world.random.choice(self._world.brokers)}"
        others = [f"broker-{b}" for b in self._world.brokers if f"broker-{b}" != one] + self._controllers()
        others += ["test"] if self._world.random.random() < 0.5 else []
        return self._cut([(one, other) for other in others] + [(other, one) for other in others])

    def cut_controllers(self) -> bool:
        """A broker does not reach the controllers, but everybody else."""
        one = f"broker-{self._world.random.choice(self._world.brokers)}"
        return self._cut([pair for other in self._controllers() for pair in ((one, other), (other, one))])

    def fence(self) -> bool:
        """A broker that lives is not heard for longer than a session."""
        one = f"broker-{self._world.random.choice(self._world.brokers)}"
        return self._cut([(one, other) for other in self._controllers()], 1.3)

    def reset(self) -> bool:
        """The connections of a broker break: to the controllers, or to another broker."""
        one = self._world.random.choice(self._world.brokers)
        others = self._controllers() if self._world.random.random() < 0.7 else [self._pair()[1]]
        for other in others:
            self._cluster.reset(f"broker-{one}", other)
        return True

    def _pair(self) -> tuple[str, str]:
        one, other = self._world.random.sample(self._world.brokers, 2)
        return f"broker-{one}", f"broker-{other}"

    def _cut(self, pairs: list[tuple[str, str]], span_s: float | None = None) -> bool:
        self._world.say(f"cut {pairs}")
        network = self._cluster.lab.network
        for source, target in pairs:
            network.cut(source, target)

        self._later(span_s or self._span(), lambda: self._mend(pairs))
        return True

    def _mend(self, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            self._cluster.lab.network.mend(source, target)

    # --- controllers and their store --------------------------------------------------------------------------

    def pause_controller(self) -> bool:
        """A controller stands still, and goes on in its old belief."""
        number = self._world.random.randint(1, self._world.profile.controllers)
        if not self._cluster.runs(controller=number):
            return False
        self._world.say(f"controller {number} is paused")
        self._cluster.pause(controller=number)
        self._later(self._span(), lambda: self._go_on("controller", number))
        return True

    def crash_controller(self) -> bool:
        """A controller dies in the middle of whatever it does."""
        number = self._world.random.randint(1, self._world.profile.controllers)
        if not self._cluster.runs(controller=number):
            return False
        self._world.say(f"controller {number} is killed")
        self._cluster.kill(controller=number)
        self._start_later("controller", number)
        return True

    def lose_answers(self) -> bool:
        """The store does what it is asked for, and nobody hears of it."""
        self._cluster.store.answers_lost += self._world.random.randint(1, 3)
        return True

    def cut_store(self) -> bool:
        """No controller reaches the store."""
        store = self._cluster.store
        if not store.reachable:
            return False
        self._world.say("the store is out of reach")
        store.reachable = False
        self._later(self._span() / 2, lambda: setattr(store, "reachable", True))
        return True
