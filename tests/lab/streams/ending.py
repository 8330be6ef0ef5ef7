"""The last look: what was written, the state, and the positions, when all of the input should have been worked on."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson
from tests.lab.streams.disks import Disk, DiskStore
from tests.lab.streams.programs import LATE, LINES, OUT, STORE, Expected, Line, Written, compare

from headrace import aio
from headrace.records import Record, TopicPartition
from headrace_streams.core.state.changelog import newest
from headrace_streams.plan.cut import Assembly, SubTopology
from headrace_streams.plan.nodes import changelog_topic, repartition_topic
from headrace_streams.runtime.following import progress_of

if TYPE_CHECKING:
    from tests.lab.streams.world import World

OUT_PARTITIONS: Final = 2
CALM_S_MAX: Final = 90.0
"""Virtual seconds after the last fault in which everything has to be written."""
SETTLE_S: Final = 1.0
"""So long more, for rows that should not come."""
MARKERS_S: Final = 0.1
"""A commit is answered before its markers are written."""
READ_MS_MAX: Final = 60_000
READS: Final[dict[str, Any]] = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
}


async def read_all(world: World, topic: str, partitions: int) -> list[list[Record[bytes, bytes]]]:
    """The committed records of each partition, when nothing is open in it."""
    found: list[list[Record[bytes, bytes]]] = [[] for _ in range(partitions)]
    listed = [(topic, number) for number in range(partitions)]
    servers = world.cluster.address
    async with (
        aio.Consumer(bootstrap_servers=servers, **READS) as consumer,
        aio.Consumer(bootstrap_servers=servers) as undecided,
    ):
        while await consumer.end_offsets(listed) != await undecided.end_offsets(listed):
            await asyncio.sleep(MARKERS_S)
        await consumer.assign(listed)
        for record in await consumer.read_to_end(timeout_ms=READ_MS_MAX):
            found[record.partition].append(record)
    return found


async def read_input(world: World) -> list[list[Line]]:
    """What the program is to work on."""
    logs = await read_all(world, LINES, world.profile.partitions)
    return [[(record.key or b"", orjson.loads(record.value or b"")) for record in log] for log in logs]


class Ending:
    """Of one world, whose input is complete."""

    def __init__(self, world: World, logs: Sequence[Sequence[Line]]) -> None:
        self._world = world
        self._app = world.program.app()
        self._expected: Expected = world.program.expected(logs)
        self._assembly = Assembly(self._app.name, self._app.graph, {LINES: world.profile.partitions})
        self._written: Written = defaultdict(list)
        world.counts["rows expected"] += sum(map(len, self._expected.written.values()))

    async def wait(self) -> None:
        """Until all that is expected was written, every position is at its end, and a little longer."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CALM_S_MAX
        servers = self._world.cluster.address
        async with aio.Consumer(bootstrap_servers=servers, group_id=self._app.name, **READS) as consumer:
            await consumer.assign([(topic, number) for topic in (OUT, LATE) for number in range(OUT_PARTITIONS)])
            while not self._find("doubled") and (why := self._find("lost") or await self._behind(consumer)):
                if loop.time() > end or self._world.problems:
                    self._world.wrong(f"liveness: not within {CALM_S_MAX:.0f} s: {why}")
                    return
                self._take(await consumer.poll(timeout_ms=300))
            while loop.time() < end and (more := await consumer.poll(timeout_ms=SETTLE_S * 1_000)):
                self._take(more)
        for problem in self._compare():
            self._world.wrong(problem)

    def _take(self, records: Sequence[Record[bytes, bytes]]) -> None:
        for record in records:
            key, said = self._world.program.read(record.topic, orjson.loads(record.value or b""))
            self._written[record.topic, key].append(said)

    def _find(self, kind: str) -> str:
        """The first such difference, as of now."""
        return next((p for p in self._compare() if p.startswith(kind)), "")

    def _compare(self) -> list[str]:
        return compare(self._expected.written, self._written, repeats=self._world.profile.repeats)

    def _topics(self, part: SubTopology) -> list[str]:
        return [*part.topics, *(repartition_topic(self._app.name, hop.name) for hop in part.hops)]

    async def _behind(self, consumer: aio.Consumer[Any, Any]) -> str:
        """A position that is not at the end of its partition."""
        partitions = [
            TopicPartition(topic, number)
            for part in self._assembly.parts
            for topic in self._topics(part)
            for number in range(self._assembly.tasks_of(part))
        ]
        committed, ends = await consumer.committed(partitions), await consumer.end_offsets(partitions)
        for tp, end in ends.items():
            at = committed[tp]
            if end != (0 if at is None else at.offset):
                return f"the group stands at {at} of {tp}, which ends at {end}"
        return ""

    # --- state ----------------------------------------------------------------------------------------------------

    async def judge(self, disks: Sequence[Disk]) -> None:
        """All workers have ended well; ``disks`` are what they leave behind."""
        found: Counter[Any] = Counter()
        for part in self._assembly.parts:
            if part.stateful:
                await self._judge_part(part, disks, found)
        if found != self._expected.state:
            self._world.wrong(f"state: it is {found}, not {self._expected.state}")

    async def _judge_part(self, part: SubTopology, disks: Sequence[Disk], found: Counter[Any]) -> None:
        count = self._assembly.tasks_of(part)
        logs = await read_all(self._world, changelog_topic(self._app.name, part.name), count)
        servers = self._world.cluster.address
        async with aio.Consumer(bootstrap_servers=servers, group_id=self._app.name, **READS) as consumer:
            positions = await consumer.committed([(topic, n) for topic in self._topics(part) for n in range(count)])
        for number, log in enumerate(logs):
            store = self._newest(f"{part.name}/{number}", [disk.open(part.name, number) for disk in disks], log)
            progress = progress_of(store)
            for topic in self._topics(part):
                at = positions[TopicPartition(topic, number)]
                if progress.positions.get(topic) != (None if at is None else at.offset):
                    self._world.wrong(f"positions: {part.name}/{number} says {progress.positions}, the group {at}")
            task = self._assembly.make(part, number)
            task.open(store.cold, progress.watermarks)
            contents = task.contents(STORE)
            for row in [] if contents is None else contents.to_pylist():
                key, n = self._world.program.kept(row)
                found[key] += n

    def _newest(self, task: str, stores: Sequence[DiskStore], log: Sequence[Record[bytes, bytes]]) -> DiskStore:
        """Each disk has what its changelog said at its checkpoint; who was the last to have the task has all of it."""
        at = [-1 if (checkpoint := store.checkpoint()) is None else checkpoint.next_offset for store in stores]
        for store, end in zip(stores, at, strict=True):
            changelog = newest((record.key or b"", record.value) for record in log if record.offset < end)
            replayed = {key: value for key, value in changelog.items() if value is not None}
            if store.rows() != replayed:
                differing = {key for key, _ in replayed.items() ^ store.rows().items()}
                self._world.wrong(f"cold tier: {task} differs from its changelog in {differing}")
        last = max((record.offset for record in log), default=-1)
        if max(at) <= last:
            self._world.wrong(f"cold tier: {task} is at {at} on the disks, and its changelog ends behind {last}")
        return stores[at.index(max(at))]
