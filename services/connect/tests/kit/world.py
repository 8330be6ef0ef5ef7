"""Workers over ports in memory, on a loop whose time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from services.connect.tests.kit.group import MemoryGroup, MemoryMembership
from services.connect.tests.kit.hosts import MemoryHosts, Outer
from services.connect.tests.kit.logs import MemoryConfigLog, MemoryEventLog, MemoryStatusLog, MemoryTopic

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect_worker.core.records import RunState
from headrace_connect_worker.core.sink_offsets import positions_of
from headrace_connect_worker.engine.leading import LeadingLimits
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.worker import ConnectWorker, Outside
from headrace_connect_worker.ports import Config, ConnectorOffset

PATIENCE_MS = 600_000.0


class LoopClock:
    """Satisfies ``Clock``: the time of the event loop."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1_000

    async def sleep_ms(self, ms: float) -> None:
        await asyncio.sleep(max(0.0, ms) / 1_000)


class MemoryOffsets:
    """Satisfies ``OffsetStore``; remembers what it was told."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, int, Sequence[ConnectorOffset] | None]] = []
        self.groups: dict[str, dict[tuple[str, int], int]] = {}
        """What groups of sinks have committed."""
        self.fails: HeadraceError | None = None
        self.ends = 1_000
        """Of all logs."""

    async def read(self, connector: str, kind: str, config: Config) -> Sequence[ConnectorOffset]:
        del config
        if kind == "sink":
            return [of_sink(*one) for one in sorted(self.groups.get(connector, {}).items())]
        return [ConnectorOffset({"of": connector}, {"kind": kind})]

    async def change(
        self, connector: str, kind: str, config: Config, generation: int, offsets: Sequence[ConnectorOffset] | None
    ) -> None:
        del config
        if self.fails is not None:
            raise self.fails
        self.changes.append((connector, kind, generation, offsets))
        if kind != "sink":
            return
        group = {} if offsets is None else self.groups.get(connector, {})
        for at, position in positions_of((one.partition, one.offset) for one in offsets or ()).items():
            group.pop(at, None)
            if position is not None:
                group[at] = min(position, self.ends)
        self.groups[connector] = group

    async def close(self) -> None:
        return


def of_sink(at: tuple[str, int], offset: int | None) -> ConnectorOffset:
    """A position as Kafka shows it."""
    where = {"kafka_topic": at[0], "kafka_partition": at[1]}
    return ConnectorOffset(where, None if offset is None else {"kafka_offset": offset})


class TestWorker:
    """One worker, and what a test looks at."""

    __test__ = False

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.hosts = MemoryHosts(world.outer)
        self.log = MemoryConfigLog(world.configs)
        self.statuses = MemoryStatusLog(world.statuses)
        self.membership: MemoryMembership = world.group.member()
        self.offsets = MemoryOffsets()
        outside = Outside(self.log, self.statuses, world.events, self.offsets, self.membership, self.hosts, world.clock)
        self.worker = ConnectWorker(outside, Place(f"{name}:8083", f"http://{name}:8083"), LeadingLimits(3, 5_000))
        self.herd = self.worker.herd
        self.tasks = TaskRunner()
        self.worker.begin(self.tasks)

    @property
    def running(self) -> dict[tuple[str, int], list[str]]:
        """What runs here: splits by task."""
        return {place: [split.id for split in task.splits] for place, task in self.hosts.tasks.items()}

    async def stop(self) -> None:
        await self.worker.leave(60_000)
        await self.tasks.close()

    async def kill(self) -> None:
        await self.tasks.close()


class World:
    """A cluster in memory."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.configs = MemoryTopic()
        self.statuses = MemoryTopic()
        self.events = MemoryEventLog()
        self.group = MemoryGroup()
        self.outer = Outer()
        self.workers: list[TestWorker] = []

    def worker(self, name: str) -> TestWorker:
        made = TestWorker(self, name)
        self.workers.append(made)
        return made

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds; all that happens is looked at."""
        async with limit_ms(PATIENCE_MS):
            while not holds():
                for worker in self.workers:
                    if worker.tasks.failure is not None:
                        raise worker.tasks.failure
                await asyncio.sleep(0.01)

    async def until_leader(self) -> TestWorker:
        await self.until(lambda: any(worker.worker.leading.leads for worker in self.workers))
        (leader,) = [worker for worker in self.workers if worker.worker.leading.leads]
        await self.until(lambda: all(one.herd.is_ready and one.herd.leader is not None for one in self.workers))
        return leader

    @property
    def running(self) -> dict[tuple[str, int], list[str]]:
        """What runs anywhere; nothing runs twice."""
        found: dict[tuple[str, int], list[str]] = {}
        for worker in self.workers:
            for place, splits in worker.running.items():
                assert place not in found, f"{place} runs twice"
                found[place] = splits
        return found

    def state(self, connector: str, task: int | None = None) -> RunState | None:
        """As the first worker knows it."""
        statuses = self.workers[0].herd.statuses
        status = statuses.connector(connector) if task is None else statuses.task(connector, task)
        return None if status is None else status.state

    async def close(self) -> None:
        for worker in self.workers:
            await worker.tasks.close()
