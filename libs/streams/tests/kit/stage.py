"""
All that a worker works with, in memory: what it asks for is written down in one list, and a test says what fails.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from headrace.records import Committed, PartitionTable, TopicPartition
from headrace.work_types import GivenItem, WorkChange
from headrace_common.core.errors import HeadraceError, TransactionAbortable
from headrace_streams.adapters.memory_store import MemoryStores, MemoryTaskStore
from headrace_streams.config import StreamsConfig
from headrace_streams.core.outputs import Limits, Output
from headrace_streams.core.state.store import Changes
from headrace_streams.dsl.app import App
from headrace_streams.plan.known import Known
from headrace_streams.ports import Checkpoint, InternalTopic, Shared, TopicFacts
from headrace_streams.runtime.owned import Outside
from headrace_streams.runtime.worker import Worker

_STEPS_MAX = 200
Row = tuple[bytes | None, bytes | None]


class Stage:
    """One partition for each topic. ``calls`` has what matters of a commit and of taking a task over, in its order."""

    def __init__(self, app: App, *topics: str, **settings: Any) -> None:
        self.app = app
        self.config = StreamsConfig(**{"commit_interval_ms": 100, **settings})
        self.topics = set(topics)
        self.calls: list[str] = []
        self.fails: defaultdict[str, deque[HeadraceError]] = defaultdict(deque)
        """By call: what becomes of it the next times."""
        self.at_ms = 1.0
        self.logs: defaultdict[str, list[Row | None]] = defaultdict(list)
        """By topic: what is in it; None: a fence, or another offset without a record."""
        self.timed_out: HeadraceError = TransactionAbortable("it has timed out")
        """What is said of a transaction that was open for too long."""
        self.decided: dict[str, int] = {}
        """By topic: up to where transactions are; all, if it does not say."""
        self.group: dict[TopicPartition, Committed] = {}
        self.known_: dict[str, Known] = {}
        """What groups say of their apps."""
        self.disks = _Disks(self)
        self.members: list[Member] = []
        self._workers: list[Worker] = []

    def call(self, name: str) -> None:
        """
        Raises:
            HeadraceError: as the test has said.
        """
        self.calls.append(name)
        if self.fails[name]:
            raise self.fails[name].popleft()

    def write(self, topic: str, *rows: Row) -> None:
        """Records of the input."""
        self.logs[topic] += rows

    def worker(self) -> Worker:
        """A process; what the one before left is there."""
        outside: Any = Outside(
            self,  # type: ignore[arg-type]
            _Reader(self),
            _Reader(self, of_logs=True),
            self,  # type: ignore[arg-type]
            self.disks,
            self.join,
            self,  # type: ignore[arg-type]
            self.compute,
            self.compute,
        )
        self._workers.append(Worker(self.app, self.config, outside))
        return self._workers[-1]

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            await self.kill(worker)

    async def kill(self, worker: Worker) -> None:
        """Its process is no more."""
        left = [task for task in (worker._following, worker._taking_snapshots) if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def working(self, *items: str, epoch: int = 1, unended: tuple[str, ...] = ()) -> Worker:
        """A worker that has taken these tasks over."""
        worker = self.worker()
        await worker.assemble()
        await worker.start()
        given = tuple(GivenItem(item, epoch, unended) for item in items)
        self.members[-1].changes.append(WorkChange(assigned=given))
        for _ in range(_STEPS_MAX):
            await worker._hear()
            if worker._here.owned.keys() == set(items):
                return worker
        raise AssertionError(f"{items} were not taken: {self.calls}")

    # --- topics, clock, thread --------------------------------------------------------------------------------------

    async def names(self) -> list[str]:
        return sorted(self.topics)

    async def find(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        return {name: TopicFacts(f"id of {name}", 1) for name in names if name in self.topics}

    async def make(self, topics: Sequence[InternalTopic]) -> dict[str, TopicFacts]:
        self.topics |= {topic.name for topic in topics}
        return await self.find([topic.name for topic in topics])

    async def limits(self, names: Sequence[str]) -> dict[str, Limits]:
        return {}

    async def trim(self, positions: Mapping[TopicPartition, int]) -> None:
        self.call(f"trim {_at({tp: Committed(at) for tp, at in positions.items()})}")

    async def shared(self, app: str) -> Shared:
        return Shared()

    async def positions(self, app: str) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in self.group.items()}

    async def known(self, app: str) -> Known:
        known = self.known_.get(app, Known(app))
        return replace(known, positions=await self.positions(app)) if app == self.app.name else known

    def now_ms(self) -> int:
        return int(self.at_ms)

    def monotonic_ms(self) -> float:
        return self.at_ms

    async def sleep_ms(self, ms: float) -> None:
        self.at_ms += ms
        await asyncio.sleep(0)

    async def compute(self, call: Any, *args: Any) -> Any:
        return call(*args)

    # --- the group and writers --------------------------------------------------------------------------------------

    async def join(self, declaration: Any, lags: Mapping[str, int]) -> Member:
        self.members.append(Member(self, len(self.members) + 1))
        self.calls.append(f"join as {self.members[-1].transactional_id}")
        return self.members[-1]

    async def open(self, membership: Member) -> _Writer:
        if self.fails["open"]:
            raise self.fails["open"].popleft()
        return _Writer(self)

    async def end(self, transactional_id: str) -> None:
        self.call(f"end {transactional_id}")


class Member:
    """A membership of the worker."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self.transactional_id = f"a-{number}"
        self.changes: deque[WorkChange] = deque()

    def group_metadata(self) -> Any:
        return SimpleNamespace()

    async def poll(self, timeout_ms: float = 0) -> WorkChange | None:
        await asyncio.sleep(0)
        return self.changes.popleft() if self.changes else None

    def give_up(self, *items: str) -> None:
        self._stage.calls.append(f"give up {', '.join(items)}")

    def report(self, **said: Any) -> None:
        self._stage.calls += [f"report {what} {value}" for what, value in said.items() if what != "lags"]

    async def close(self) -> None:
        self._stage.calls.append("leave the group")


class _Reader:
    def __init__(self, stage: Stage, *, of_logs: bool = False) -> None:
        self._stage = stage
        self._of_logs = of_logs
        self._positions: dict[TopicPartition, int] = {}
        self._told: set[TopicPartition] = set()

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = {tp: max(0, at) for tp, at in positions.items()}
        self._told = set()
        if not self._of_logs:
            self._stage.calls.append(f"read {_at({tp: Committed(at) for tp, at in self._positions.items()})}")

    def pause(self, partitions: Collection[TopicPartition]) -> None: ...

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        await asyncio.sleep(0)
        found = []
        for tp, position in self._positions.items():
            log = self._decided(tp)
            if position == len(log) and tp in self._told:
                continue
            rows = [(n, *row) for n, row in enumerate(log[position : position + max_rows], position) if row is not None]
            offsets, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
            columns = {
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "timestamp_ms": pa.array([1_000 + n for n in offsets], pa.int64()),
                "offset": pa.array(offsets, pa.int64()),
            }
            at = self._positions[tp] = min(len(log), position + max_rows)
            self._told.add(tp)
            found.append(PartitionTable(tp.topic, tp.partition, pa.table(columns), at, 0, len(log), len(log)))
        return found

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        self._stage.call("ask for positions")
        return {tp: self._stage.group.get(tp) for tp in partitions}

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: len(self._stage.logs[tp.topic]) for tp in partitions}

    async def at_ends(self, partitions: Sequence[TopicPartition]) -> Collection[TopicPartition]:
        return [tp for tp in partitions if self._positions.get(tp, 0) >= len(self._decided(tp))]

    def _decided(self, tp: TopicPartition) -> list[Row | None]:
        log = self._stage.logs[tp.topic]
        return log[: self._stage.decided.get(tp.topic, len(log))]

    async def starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def close(self) -> None: ...


class _Writer:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._open: list[Output] = []
        self._until_ms = float("inf")

    async def fence(self, partition: TopicPartition, token: int) -> int:
        self._stage.call(f"fence {partition.topic} with {token}")
        self._stage.logs[partition.topic].append(None)
        return len(self._stage.logs[partition.topic]) - 1

    async def begin(self) -> None:
        self._stage.call("begin")
        assert not self._open
        self._until_ms = self._stage.at_ms + self._stage.config.transaction_timeout_ms

    async def send(self, output: Output) -> Any:
        self._stage.call(f"send {output.topic}")
        self._open.append(output)
        return SimpleNamespace(end=lambda: len(self._stage.logs[output.topic]))

    async def send_at_once(self, output: Output) -> None:
        self._stage.call(f"send {output.topic} at once")
        self._append(output)

    def _append(self, output: Output) -> None:
        keys, values = (output.records[name].to_pylist() for name in ("key", "value"))
        self._stage.logs[output.topic] += zip(keys, values, strict=True)

    async def flush(self) -> None:
        self._stage.call("flush")

    async def behind(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        for _ in range(5):  # it takes a while
            await asyncio.sleep(0)
        self._stage.call(f"mark {', '.join(tp.topic for tp in partitions)}")
        for tp in partitions:
            self._stage.logs[tp.topic].append(None)
        return {tp: len(self._stage.logs[tp.topic]) for tp in partitions}

    async def commit(self, positions: Mapping[TopicPartition, Committed]) -> None:
        self._stage.call(f"commit {_at(positions)}")
        if self._stage.at_ms >= self._until_ms:
            raise self._stage.timed_out
        for output in self._open:
            self._append(output)
        self._open = []
        self._stage.group |= positions

    async def abort(self) -> None:
        self._open = []
        self._stage.call("abort")

    async def close(self) -> None:
        self._open = []
        self._stage.calls.append("let go of the writer")


class _Disks(MemoryStores):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def open(self, sub_topology: str, partition: int) -> MemoryTaskStore:
        return self.stores.setdefault((sub_topology, partition), _Disk(self._stage))


class _Disk(MemoryTaskStore):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def write(self, rows: Changes, checkpoint: Checkpoint) -> None:
        self._stage.call(f"disk to {checkpoint.next_offset}")
        super().write(rows, checkpoint)


def _at(positions: Mapping[TopicPartition, Committed]) -> str:
    return ", ".join(f"{tp.topic}@{at.offset}" for tp, at in positions.items())
