"""What goes wrong in a world of transactions, and how it is made good again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from tests.lab.transactions.clients import Transformer, Writer, find_living
from tests.lab.transactions.processes import Process
from tests.lab.transactions.watch import DATA

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from tests.lab.transactions.world import World

HOUR_S = 3_600
DELAY_MS = (0.1, 0.5)
"""What a message takes."""
SYNC_MS = (0.5, 8.0)
"""What a sync takes: so long that batches of several producers meet in it."""


class Faults:
    """Calls one method of itself after the other, drawn from the profile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._on = True
        self._later: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Until ``heal``."""
        profile = self._world.profile
        while True:
            await asyncio.sleep(profile.fault_every_s * (0.3 + 1.4 * self._random.random()))
            getattr(self, self._random.choice(profile.faults))()

    def _after(self, seconds: float, what: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            if self._on:
                result = what()
                if isinstance(result, Awaitable):
                    await result

        self._later.append(asyncio.create_task(wait()))

    def _tell(self, what: str) -> None:
        self._world.counts[f"fault {what.split(':', maxsplit=1)[0]}"] += 1
        self._world.tell(what)

    def _lasting(self, *choices: float) -> float:
        return self._random.choice(choices) * (0.5 + self._random.random())

    # --- nodes ------------------------------------------------------------------------------------------------

    def _broker(self) -> int | None:
        cluster = self._world.cluster
        up = [n for n in range(1, self._world.profile.brokers + 1) if cluster.runs(n)]
        return self._random.choice(up) if up and (len(up) > 1 or self._world.profile.brokers == 1) else None

    def _coordinator(self) -> int | None:
        cluster = self._world.cluster
        up = [n for n in range(1, self._world.profile.coordinators + 1) if cluster.runs(coordinator=n)]
        return self._random.choice(up) if up else None

    def kill_broker(self) -> None:
        """kill -9: its disk has everything."""
        self._crash(power=False)

    def power_broker(self) -> None:
        """What was not synced is gone."""
        self._crash(power=True)

    def _crash(self, *, power: bool) -> None:
        broker = self._broker()
        if broker is not None:
            self._tell(f"{'power' if power else 'kill'}_broker: {broker}")
            self._world.cluster.kill(broker, power=power)
            self._after(self._lasting(0.05, 0.3, 1.5), lambda: self._start(broker=broker))

    def power_all(self) -> None:
        """All brokers at once."""
        if self._random.random() < 0.7:
            return
        self._tell("power_all")
        for broker in range(1, self._world.profile.brokers + 1):
            if self._world.cluster.runs(broker):
                self._world.cluster.kill(broker, power=True)
                self._after(self._lasting(0.05, 0.3), lambda broker=broker: self._start(broker=broker))  # type: ignore[misc]  # of its turn

    def _start(self, **node: int) -> None:
        if not self._world.cluster.runs(**node):
            self._world.cluster.restart(**node)

    def pause_broker(self) -> None:
        """It stands still, with its messages waiting, and goes on believing."""
        broker = self._broker()
        if broker is not None:
            self._pause(self._lasting(0.2, 0.8, 2.5), broker=broker)

    def _pause(self, seconds: float, **node: int) -> None:
        cluster = self._world.cluster
        (role, number) = next(iter(node.items()))
        self._tell(f"pause_{role}: {number} for {seconds:.1f} s")
        cluster.pause(**node)
        self._after(seconds, lambda: cluster.resume(**node) if cluster.runs(**node) else None)

    def isolate_broker(self) -> None:
        """Other brokers and the controller are out of reach; clients and coordinators are not."""
        broker = self._broker()
        if broker is None:
            return
        others = [f"broker-{n}" for n in range(1, self._world.profile.brokers + 1) if n != broker]
        if self._random.random() < 0.7:
            others.append("controller-1")
        self._tell(f"isolate_broker: {broker} of {others}")
        self._cut([(f"broker-{broker}", other) for other in others], self._lasting(0.3, 1.5, 3.0))

    def move_leader(self) -> None:
        """A broker's leaders go to others, and may come back."""
        broker = self._broker()
        if broker is not None:
            self._tell(f"move_leader: away from {broker}")
            self._after(0, lambda: self._drain(broker))

    async def _drain(self, broker: int) -> None:
        try:
            await self._world.admin.drain_broker(broker)
            await asyncio.sleep(self._lasting(0.1, 0.5))
            await self._world.admin.drain_broker(broker, drained=False)
            await self._world.admin.elect_leaders()
        except HeadraceError:
            self._world.counts["leaders not moved"] += 1

    def slow_disk(self) -> None:
        """Syncs take long."""
        broker = self._broker()
        if broker is not None:
            cluster = self._world.cluster
            self._tell(f"slow_disk: {broker}")
            cluster.slow_disk(broker, ms=(5, 400))
            self._after(self._lasting(1.0, 3.0), lambda: cluster.slow_disk(broker, ms=SYNC_MS))

    def slow_brokers(self) -> None:
        """Copying lags: what is appended is not committed for a while."""
        count = self._world.profile.brokers
        if count < 2:
            return
        one, other = self._random.sample(range(1, count + 1), 2)
        self._tell(f"slow_brokers: {one} and {other}")
        cluster = self._world.cluster
        cluster.delay(one, other, ms=(10, 200))
        self._after(self._lasting(1.0, 3.0), lambda: cluster.delay(one, other, ms=DELAY_MS))

    def fail_over(self) -> None:
        """A broker dies while copying from it lags: what it has appended and nobody else has is cut, or comes back."""
        count, broker = self._world.profile.brokers, self._broker()
        if count < 2 or broker is None:
            return
        self._tell(f"fail_over: {broker}")
        cluster = self._world.cluster
        others = [other for other in range(1, count + 1) if other != broker]
        for other in others:
            cluster.delay(broker, other, ms=(50, 300))

        def restart() -> None:
            for other in others:
                cluster.delay(broker, other, ms=DELAY_MS)
            self._start(broker=broker)

        def kill() -> None:
            if cluster.runs(broker):
                cluster.kill(broker, power=self._random.random() < 0.2)
            self._after(self._lasting(0.01, 0.3, 0.8), restart)

        self._after(self._lasting(0.1, 0.3), kill)

    def slow_coordinators(self) -> None:
        """Messages between coordinators take long, each as it comes: what goes over two connections is overtaken."""
        count = self._world.profile.coordinators
        names = [f"coordinator-{n}" for n in range(1, count + 1)]
        if count < 2:
            return
        self._tell("slow_coordinators")
        cluster = self._world.cluster
        cluster.delay(names[0], names[1], ms=(0, 1_500))
        self._after(self._lasting(1.0, 3.0), lambda: cluster.delay(names[0], names[1], ms=DELAY_MS))

    def trim(self) -> None:
        """Records are deleted that everybody has read, up to any offset; maybe inside an open transaction."""
        number = self._random.randrange(self._world.profile.partitions)
        self._after(0, lambda: self._delete_records(number))

    async def _delete_records(self, number: int) -> None:
        end = self._world.read_by_all(number)
        if end <= 0:
            return
        offset = self._random.randint(1, end)
        self._tell(f"trim: {number} to {offset}")
        try:
            await self._world.admin.delete_records({(DATA, number): offset})
        except HeadraceError:
            self._world.counts["trims refused"] += 1

    def kill_coordinator(self) -> None:
        """kill -9."""
        node = self._coordinator()
        if node is not None:
            self._tell(f"kill_coordinator: {node}")
            self._world.cluster.kill(coordinator=node)
            self._after(self._lasting(0.05, 0.5, 2.0), lambda: self._start(coordinator=node))

    def pause_coordinator(self) -> None:
        """It stands still, and goes on believing what it believed."""
        node = self._coordinator()
        if node is not None:
            self._pause(self._lasting(0.2, 1.0, 3.0, 9.0), coordinator=node)

    def drain_coordinator(self) -> None:
        """It is told to stop, and gives its shards away."""
        node = self._coordinator()
        if node is not None:
            self._tell(f"drain_coordinator: {node}")
            self._after(0, lambda: self._stop(node))

    async def _stop(self, node: int) -> None:
        await self._world.cluster.stop(coordinator=node)
        await asyncio.sleep(self._lasting(0.1, 1.0))
        self._start(coordinator=node)

    def jump_clock(self) -> None:
        """All wall clocks jump."""
        seconds = self._random.choice((-HOUR_S, HOUR_S, -4, 4))
        self._tell(f"jump_clock: {seconds} s")
        self._world.cluster.lab.machine.ahead_s += seconds

    # --- connections ------------------------------------------------------------------------------------------

    def _cut(self, pairs: Sequence[tuple[str, str]], seconds: float) -> None:
        ways = [*pairs, *((target, source) for source, target in pairs)]
        if len(pairs) == 1 and self._random.random() < 0.3:
            ways = [self._random.choice(ways)]
        network = self._world.cluster.lab.network
        for source, target in ways:
            network.cut(source, target)
        self._after(seconds, lambda: self._mend(ways))

    def _mend(self, ways: Sequence[tuple[str, str]]) -> None:
        network = self._world.cluster.lab.network
        for source, target in ways:
            network.between(source, target).cut = False
        for connection in list(network.connections):
            connection.go_on()

    def cut_controller(self) -> None:
        """A coordinator does not reach the controller: it goes on believing."""
        node = self._coordinator()
        if node is not None:
            seconds = self._lasting(1.0, 3.0, 4.0)
            self._tell(f"cut_controller: coordinator {node} for {seconds:.1f} s")
            self._cut([(f"coordinator-{node}", "controller-1")], seconds)

    def cut_logs(self) -> None:
        """A coordinator does not reach the brokers: no records, no markers."""
        node = self._coordinator()
        if node is not None:
            brokers = [f"broker-{n}" for n in range(1, self._world.profile.brokers + 1)]
            self._tell(f"cut_logs: coordinator {node}")
            self._cut([(f"coordinator-{node}", broker) for broker in brokers], self._lasting(0.3, 1.0, 4.0))

    def cut_marker(self) -> None:
        """A coordinator and a broker do not reach each other, or one way only."""
        node, broker = self._coordinator(), self._broker()
        if node is not None and broker is not None:
            self._tell(f"cut_marker: coordinator {node} and broker {broker}")
            self._cut([(f"coordinator-{node}", f"broker-{broker}")], self._lasting(0.3, 1.0, 4.0))

    def reset(self) -> None:
        """Connections between two nodes break; what was on its way is lost."""
        nodes = [f"broker-{n}" for n in range(1, self._world.profile.brokers + 1)]
        nodes += [f"coordinator-{n}" for n in range(1, self._world.profile.coordinators + 1)]
        others = nodes + [one.name for one in self._world.processes if one.lives]
        one, other = self._random.choice(nodes), self._random.choice(others)
        self._tell(f"reset: {one} and {other}")
        self._world.cluster.lab.network.reset(one, other)

    # --- clients ----------------------------------------------------------------------------------------------

    def _writer(self) -> Writer | None:
        found = find_living(self._world.processes, Writer)
        writer = self._random.choice(found) if found else None
        assert writer is None or isinstance(writer, Writer), "of that kind"
        return writer

    def kill_writer(self) -> None:
        """kill -9, in the middle of whatever it does."""
        writer = self._writer()
        if writer is not None:
            self._tell(f"kill_writer: {writer.name}")
            self._world.kill(writer)

    def kill_at_end(self) -> None:
        """kill -9 a moment after it asked for the end of its transaction."""
        self._doom("end", self._writer())

    def kill_at_positions(self) -> None:
        """kill -9 a moment after it handed positions over, while answers between coordinators are long under way."""
        found = find_living(self._world.processes, Transformer)
        self._doom("positions", self._random.choice(found) if found else None)

    def _doom(self, when: str, writer: Process | None) -> None:
        if isinstance(writer, Writer):
            self._tell(f"kill_at_{when}: {writer.name}")
            writer.doomed = when

    def pause_writer(self) -> None:
        """A zombie: it goes on when its transaction is long over."""
        writer = self._writer()
        if writer is None or writer.node is None:
            return
        node, loop = writer.node, self._world.cluster.lab.loop
        seconds = self._lasting(0.3, 2.0, 7.0)
        self._tell(f"pause_writer: {writer.name} for {seconds:.1f} s")
        loop.pause(node)
        self._after(seconds, lambda: loop.resume(node) if node.alive else None)

    def twin_writer(self) -> None:
        """A second process with the same transactional id, or the same owner's name, for a while."""
        writer, world = self._writer(), self._world
        if writer is None or len(find_living(world.processes, Writer)) >= world.profile.writers_max:
            return
        if isinstance(writer, Transformer) and world.profile.successors:
            return  # nothing would keep it and a successor apart
        twin = writer.twin(f"{writer.name}-twin{len(world.processes)}")
        self._tell(f"twin_writer: {twin.name}")
        world.processes.append(twin)
        twin.start()
        self._after(self._lasting(2.0, 5.0), lambda: self._leave(twin))

    def _leave(self, twin: Process) -> None:
        twin.kill()
        if twin in self._world.processes:
            self._world.processes.remove(twin)

    def cut_writer(self) -> None:
        """A writer does not reach a node, or is not reached by it."""
        writer = self._writer()
        nodes = [f"broker-{n}" for n in range(1, self._world.profile.brokers + 1)]
        nodes += [f"coordinator-{n}" for n in range(1, self._world.profile.coordinators + 1)]
        if writer is not None:
            other = self._random.choice(nodes)
            self._tell(f"cut_writer: {writer.name} and {other}")
            self._cut([(writer.name, other)], self._lasting(0.3, 1.0, 4.0))

    def abort_by_operator(self) -> None:
        """An operator aborts what is open."""
        writer = self._writer()
        if writer is not None:
            name = writer.transactional_id
            self._tell(f"abort_by_operator: {name}")
            self._after(0, lambda: self._abort(name))

    async def _abort(self, name: str) -> None:
        try:
            await self._world.admin.abort_transaction(name)
        except HeadraceError:
            self._world.counts["aborts refused"] += 1

    # --- the end ----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again."""
        self._on = False
        world, cluster = self._world, self._world.cluster
        for task in self._later:
            task.cancel()
        nodes = [{"broker": n} for n in range(1, world.profile.brokers + 1)]
        nodes += [{"coordinator": n} for n in range(1, world.profile.coordinators + 1)]
        for node in nodes:
            if cluster.runs(**node):
                cluster.resume(**node)
            else:
                self._start(**node)
        for broker in range(1, world.profile.brokers + 1):
            cluster.slow_disk(broker, ms=SYNC_MS)
        names = [f"{role}-{number}" for node in nodes for role, number in node.items()]
        for one, other in combinations(names, 2):
            cluster.delay(one, other, ms=DELAY_MS)
        cluster.heal()
        for process in world.processes:
            if process.node is not None:
                cluster.lab.loop.resume(process.node)
