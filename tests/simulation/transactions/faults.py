"""What goes wrong in a world of transactions, and how it is made good again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.misfortune import Misfortune
from tests.simulation.transactions.brokers import LogBroker
from tests.simulation.transactions.callers import Caller
from tests.simulation.transactions.clients import Writer
from tests.simulation.transactions.coordinators import TxnNode
from tests.simulation.transactions.processes import Promise

from headrace_broker.core.partition_events import RetentionChecked
from headrace_broker.engine.rebuilding import prepare_trim
from headrace_common.core.ids import Offset
from headrace_coordinator.core.transactions.events import AbortAsked
from headrace_coordinator.core.values import Moment

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

HOUR_MS = 3_600_000


class Faults(Misfortune):
    """Calls one method of itself after the other, drawn from the profile."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world

    # --- brokers ----------------------------------------------------------------------------------------------

    def _broker(self) -> LogBroker | None:
        up = [b for b in self._world.brokers.values() if b.up and not b.paused]
        return self._world.rng.choice(up) if len(up) > 1 else None

    def kill_broker(self) -> bool:
        """kill -9: its disk has everything."""
        return self._crash(self._broker(), power=False)

    def power_broker(self) -> bool:
        """What was not synced is gone."""
        return self._crash(self._broker(), power=True)

    def power_all(self) -> bool:
        """All brokers at once."""
        up = [broker for broker in self._world.brokers.values() if broker.up]
        if self._world.rng.random() < 0.8:
            return False
        for broker in up:
            self._crash(broker, power=True)
        return bool(up)

    def _crash(self, broker: LogBroker | None, *, power: bool) -> bool:
        if broker is None:
            return False
        broker.crash(power=power)
        self._world.restart_later(broker, None)
        return True

    def pause_broker(self) -> bool:
        """It stands still, with its messages waiting, and goes on believing."""
        return self._pause(self._broker(), (200.0, 800.0, 2_500.0))

    def isolate_broker(self) -> bool:
        """Other brokers and the controller are out of reach; clients and coordinators are not."""
        broker, world = self._broker(), self._world
        if broker is None:
            return False
        ms = world.rng.choice((300.0, 1_000.0, 3_000.0))
        for other in (*world.brokers, world.elections.id):
            if other != broker.id:
                self._cut(broker.id, other, ms)
        return True

    def move_leader(self) -> bool:
        """Another member of an ISR leads."""
        return self._world.elections.move_leader(self._world.rng.choice(self._world.data))

    def trim(self) -> bool:
        """Records are deleted that everybody has read, up to any offset; maybe inside an open transaction."""
        world = self._world
        id = world.rng.choice(world.data)
        broker = world.brokers.get(world.store.snapshot.partitions[id].leader)
        replica = None if broker is None or not broker.up or broker.paused else broker.replicas.get(id)
        if broker is None or replica is None or replica.core.leading is None:
            return False
        end = min(world.read_by_all(id), replica.core.high_watermark)
        if end <= replica.core.log_start:
            return False
        offset = Offset(world.rng.randint(replica.core.log_start + 1, end))
        world.say("broker", broker.id, "trims", id.partition, "to", offset)
        broker.handle(id, prepare_trim(broker.disk, replica.core, offset, int(broker.clock)))
        return True

    def expire_producers(self) -> bool:
        """A broker forgets all producers that have nothing open."""
        broker = self._broker()
        if broker is None:
            return False
        now = int(broker.clock)
        for id in list(broker.replicas):
            broker.handle(id, RetentionChecked(now, now + 1))
        return True

    # --- coordinators -----------------------------------------------------------------------------------------

    def _coordinator(self) -> TxnNode | None:
        up = [node for node in self._world.coordinators if node.up and not node.paused]
        return self._world.rng.choice(up) if up else None

    def kill_coordinator(self) -> bool:
        """kill -9; it is noticed at once, or after its session."""
        node, world = self._coordinator(), self._world
        if node is None:
            return False
        world.say("coordinator", node.id, "is killed")
        node.die()
        if world.rng.random() < 0.7:
            world.schedule.after(world.rng.random() * 300.0, world.controller.noticed, node)
        world.schedule.after(200.0 + world.rng.random() * 2_000.0, self._restart, node, node.incarnation)
        return True

    def _restart(self, node: TxnNode, incarnation: int) -> None:
        if not node.up and node.incarnation == incarnation:
            self._world.controller.noticed(node)  # it registers, and what it had before is over
            node.start()

    def pause_coordinator(self) -> bool:
        """It stands still, and goes on believing what it believed."""
        return self._pause(self._coordinator(), (200.0, 1_000.0, 3_000.0, 9_000.0))

    def drain_coordinator(self) -> bool:
        """Its shards move away; some time later it takes part again."""
        node, controller = self._coordinator(), self._world.controller
        if node is None or node.id in controller.banned:
            return False
        controller.banned.add(node.id)
        controller.settle()
        self._world.schedule.after(500.0 + self._world.rng.random() * 2_000.0, self._undrain, node.id)
        return True

    def _undrain(self, number: int) -> None:
        self._world.controller.banned.discard(number)
        self._world.controller.settle()

    def jump_clock(self) -> bool:
        """The wall clock of a coordinator jumps."""
        node = self._coordinator()
        if node is None:
            return False
        node.wall_offset += self._world.rng.choice((-HOUR_MS, HOUR_MS, -4_000, 4_000))
        return True

    def cut_controller(self) -> bool:
        """A coordinator does not reach the controller: it goes on believing."""
        node = self._coordinator()
        return node is not None and self._cut_for_a_while(node.id, self._world.controller.id)

    def cut_logs(self) -> bool:
        """A coordinator does not reach its logs."""
        node = self._coordinator()
        return node is not None and self._cut_for_a_while(node.id, self._world.logs.id)

    def cut_marker(self) -> bool:
        """A coordinator and a broker do not reach each other, or one way only: no enrolments, no markers."""
        node, broker = self._coordinator(), self._broker()
        return node is not None and broker is not None and self._cut_for_a_while(node.id, broker.id)

    def change_log_leader(self) -> bool:
        """A shard's log has another leader."""
        self._world.rng.choice(list(self._world.logs.logs.values())).change_leader()
        return True

    def stall_log(self) -> bool:
        """Too few replicas: nothing is committed for a while."""
        log = self._world.rng.choice(list(self._world.logs.logs.values()))
        log.stall(self._world.rng.choice((100.0, 600.0, 3_000.0)))
        return True

    # --- clients ----------------------------------------------------------------------------------------------

    def _writer(self) -> Writer | None:
        up = [writer for writer in self._world.writers if writer.up and not writer.paused]
        return self._world.rng.choice(up) if up else None

    def kill_writer(self) -> bool:
        """kill -9, in the middle of whatever it does."""
        writer = self._writer()
        return writer is not None and self._kill(writer)

    def kill_at_end(self) -> bool:
        """kill -9 a moment after it asked for the end of its transaction."""
        writer = self._writer()
        if writer is None:
            return False
        writer.doomed = lambda: self._world.schedule.after(self._world.rng.random() * 30.0, self._kill_if_up, writer)
        return True

    def _kill_if_up(self, writer: Writer) -> None:
        if writer.up:
            self._kill(writer)

    def _kill(self, writer: Writer) -> bool:
        world = self._world
        world.say("writer", writer.id, "is killed")
        writer.die()
        world.schedule.after(
            5.0 + world.rng.random() * world.rng.choice((50.0, 1_000.0)), self._start_again, writer, writer.incarnation
        )
        return True

    @staticmethod
    def _start_again(writer: Writer, incarnation: int) -> None:
        if not writer.up and writer.incarnation == incarnation:
            writer.start()

    def pause_writer(self) -> bool:
        """A zombie: it goes on when its transaction is long over."""
        return self._pause(self._writer(), (300.0, 2_000.0, 7_000.0))

    def twin_writer(self) -> bool:
        """A second process with the same transactional id, for a while."""
        writer, world = self._writer(), self._world
        if writer is None or len(world.writers) >= world.profile.writers_max:
            return False
        if writer.consumes and world.profile.successors:
            return False  # nothing would keep it and a successor apart
        twin = world.twin_of(writer)
        twin.start()
        world.schedule.after(2_000.0 + world.rng.random() * 6_000.0, self._leave, twin)
        return True

    def _leave(self, twin: Writer) -> None:
        twin.die()
        self._world.writers.remove(twin)

    def cut_writer(self) -> bool:
        """A writer does not reach somebody, or is not answered."""
        writer, world = self._writer(), self._world
        if writer is None:
            return False
        other = world.rng.choice([*world.brokers.values(), *world.coordinators])
        return self._cut_for_a_while(writer.id, other.id)

    def abort_by_operator(self) -> bool:
        """An operator aborts what is open."""
        writer, world = self._writer(), self._world
        if writer is None:
            return False
        name = writer.transactional_id
        world.operator.run(world.operator.to_shard(world.shard_of(name), lambda ref, at: _abort(name, ref, at)))
        return True

    def lossy(self) -> bool:
        """Connections break all the time, for a while."""
        self._world.lossy_until = self._world.schedule.now + 3_000.0
        return True

    # --- what they share --------------------------------------------------------------------------------------

    def _pause(self, process: Caller | TxnNode | None, choices: tuple[float, ...]) -> bool:
        if process is None:
            return False
        ms = self._world.rng.choice(choices) * (0.5 + self._world.rng.random())
        self._world.say(type(process).__name__, process.id, "is paused for", int(ms))
        process.paused = True
        self._world.schedule.after(ms, self._go_on, process, process.incarnation)
        return True

    def _go_on(self, process: Caller, incarnation: int) -> None:
        if process.up and process.paused and process.incarnation == incarnation:
            self._world.say(type(process).__name__, process.id, "goes on")
            process.go_on()

    def _cut_for_a_while(self, one: int, other: int) -> bool:
        return self._cut(one, other, self._world.rng.choice((300.0, 1_000.0, 4_000.0)))

    def _cut(self, one: int, other: int, ms: float) -> bool:
        network = self._world.network
        pairs = [(one, other), (other, one)]
        if self._world.rng.random() < 0.3:
            pairs = pairs[: self._world.rng.choice((1, 2))]
        for source, target in pairs:
            network.cut(source, target)
        self._world.schedule.after(ms, self._mend, tuple(pairs))
        return True

    def _mend(self, pairs: tuple[tuple[int, int], ...]) -> None:
        for source, target in pairs:
            self._world.network.mend(source, target)

    # --- the end ----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again, and nobody begins anything new."""
        self._on = False
        world = self._world
        world.lossy_until = 0.0
        world.network.mend_all()
        for log in world.logs.logs.values():
            log.stalled_until = 0.0
        world.controller.banned.clear()
        for process in (*world.brokers.values(), *world.coordinators, *world.writers):
            if process.up and process.paused:
                process.go_on()
        for broker in world.brokers.values():
            if not broker.up:
                broker.start(None)
        for node in world.coordinators:
            self._restart(node, node.incarnation)
        for writer in world.writers:
            self._start_again(writer, writer.incarnation)
        world.controller.settle()


def _abort(name: str, ref: Promise, at: Moment) -> AbortAsked:
    return AbortAsked(name, ref, at)
