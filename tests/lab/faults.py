"""What befalls the nodes of a cluster of the lab, one thing after the other, drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from headrace.testing import Cluster

PAUSE_S = (0.2, 3.0)
"""Between two faults."""
LASTS_S = (0.05, 8.0)
"""How long one lasts; longer than a session (9 s) together with the next."""


Undo = Callable[[], None]


@dataclass
class Faults:
    """Of one cluster with so many nodes."""

    cluster: Cluster
    random: Random
    brokers: int
    coordinators: int
    names: list[str] = field(default_factory=list)
    """What befell it, for a report."""

    async def run(self, count: int) -> None:
        """So many faults, some at the same time; all are over when it returns."""
        kinds = [self._kill_broker, self._kill_broker, self._kill_other, self._cut, self._isolate, self._pause]
        kinds += [self._reset, self._delay, self._slow_disk, self._stop_broker, self._blackout]
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                await asyncio.sleep(self.random.uniform(*PAUSE_S))
                group.create_task(self._befall(self.random.choice(kinds)))
        self.cluster.heal()

    async def _befall(self, kind: Callable[[], Undo | None]) -> None:
        undo = kind()
        if undo is None:
            return
        await asyncio.sleep(self.random.uniform(*LASTS_S))
        undo()

    def _broker(self) -> int:
        return self.random.randint(1, self.brokers)

    def _node(self) -> dict[str, int]:
        nodes = [{"broker": n} for n in range(1, self.brokers + 1)]
        nodes += [{"coordinator": n} for n in range(1, self.coordinators + 1)]
        return self.random.choice([*nodes, {"controller": 1}])

    def _kill_broker(self) -> Undo | None:
        broker, power = self._broker(), self.random.random() < 0.4
        if not self.cluster.runs(broker):
            return None
        self._tell(f"kill broker {broker}{' by loss of power' if power else ''}")
        self.cluster.kill(broker, power=power)
        return lambda: self._start({"broker": broker})

    def _blackout(self) -> Undo | None:
        """All brokers lose power at once; what was acknowledged is on their disks, or nowhere."""
        self._tell("all brokers lose power")
        brokers = [broker for broker in range(1, self.brokers + 1) if self.cluster.runs(broker)]
        for broker in brokers:
            self.cluster.kill(broker, power=True)
        return lambda: self._start(*({"broker": broker} for broker in brokers))

    def _kill_other(self) -> Undo | None:
        node = self.random.choice([{"controller": 1}, {"coordinator": self.random.randint(1, self.coordinators)}])
        if not self.cluster.runs(**node):
            return None
        self._tell(f"kill {node}")
        self.cluster.kill(None, power=False, **node)
        return lambda: self._start(node)

    def _stop_broker(self) -> Undo | None:
        broker = self._broker()
        if not self.cluster.runs(broker):
            return None
        self._tell(f"stop broker {broker}")
        stopping = asyncio.ensure_future(self.cluster.stop(broker))
        stopping.add_done_callback(lambda _: self._start({"broker": broker}))
        return None

    def _pause(self) -> Undo | None:
        node = self._node()
        if not self.cluster.runs(**node):
            return None
        self._tell(f"pause {node}")
        self.cluster.pause(**node)
        return lambda: self.cluster.resume(**node) if self.cluster.runs(**node) else None

    def _cut(self) -> Undo | None:
        names = [f"{role}-{number}" for node in (self._node(), self._node()) for role, number in node.items()]
        one_way = self.random.random() < 0.4
        self._tell(f"cut {names}{' one way' if one_way else ''}")
        self.cluster.cut(names[0], names[1], one_way=one_way)
        return self.cluster.heal

    def _isolate(self) -> Undo | None:
        broker = self._broker()
        self._tell(f"isolate broker {broker}")
        self.cluster.isolate(broker)
        return self.cluster.heal

    def _reset(self) -> Undo | None:
        one, other = self._broker(), self.random.choice(["test", *range(1, self.brokers + 1)])
        self._tell(f"reset {one} and {other}")
        self.cluster.reset(one, other)
        return None

    def _delay(self) -> Undo | None:
        one, other = self._broker(), self.random.choice(["test", "controller-1", *range(1, self.brokers + 1)])
        self._tell(f"delay {one} and {other}")
        self.cluster.delay(one, other, ms=(0, 800))
        return lambda: self.cluster.delay(one, other, ms=(0.1, 0.5))

    def _slow_disk(self) -> Undo | None:
        broker = self._broker()
        self._tell(f"slow disk of broker {broker}")
        self.cluster.slow_disk(broker, ms=(50, 2_000))
        return lambda: self.cluster.slow_disk(broker, ms=(0.1, 2))

    def _start(self, *nodes: dict[str, int]) -> None:
        for node in nodes:
            if not self.cluster.runs(**node):
                self.cluster.restart(**node)

    def _tell(self, what: str) -> None:
        self.names.append(f"{asyncio.get_running_loop().time():.3f} {what}")
