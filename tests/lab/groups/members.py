"""Consumers of a cluster of the lab, each a process of its own: real ones, in an application that has habits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from tests.lab.groups.profile import HEARTBEAT_MS, SESSION_MS, GroupProfile

from headrace.aio import Consumer
from headrace.aio._consumer_setup import PartitionLike
from headrace.consumer_settings import CLASSIC
from headrace.errors import HeadraceError
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_lab.cluster import Cluster
from headrace_lab.loop import Node

BEGIN_AGAIN_S: Final = 0.5
SILENT_LOOK_S: Final = 0.5
PATTERN: Final = "t[0-9]+"
CLOSE_S_MAX: Final = 5.0
COMMITS_MAX: Final = 20
"""Asynchronous ones without an answer."""


@dataclass(frozen=True)
class Habits:
    """What the application is like."""

    poll_s: float
    auto_commit: bool
    auto_commit_ms: int
    commits_one_in: int
    """Every so many polls it commits by itself."""
    waits: float
    """How many of these it waits for."""
    slow_callback_s: float
    commits_in_callback: bool
    seeks_back: bool

    @staticmethod
    def draw(rng: Random, *, seeks_back: bool) -> Habits:
        """Who goes back says so in its commits, so it makes them itself."""
        auto = not seeks_back and rng.random() < 0.5
        return Habits(
            poll_s=rng.choice((0.06, 0.15, 0.3)),
            auto_commit=auto,
            auto_commit_ms=rng.choice((500, 2_000)),
            commits_one_in=rng.choice((2, 5, 20)),
            waits=rng.choice((0.0, 0.5)),
            slow_callback_s=rng.choice((0.0, 0.3, 4.0)),
            commits_in_callback=rng.random() < 0.5,
            seeks_back=seeks_back,
        )


@dataclass(eq=False)
class Member:
    """One application; ``start`` makes a new process of it."""

    number: int
    cluster: Cluster
    rng: Random
    group: GroupProfile
    topics: Callable[[], Collection[str]]
    """To subscribe to."""
    instance_id: str | None
    seeks_back: bool
    counts: Counter[str]
    tell: Callable[[str], None]
    """Called when it crashes."""
    node: Node | None = None
    consumer: Consumer | None = None
    incarnation: int = 0
    gone: bool = False
    """It is not to be started again."""
    closing: bool = False
    calm: bool = False
    """Callbacks are quick from now on."""
    quiet: bool = False
    """It commits nothing more."""
    paused: bool = False
    silent_until: float = 0.0
    held_until: float = 0.0
    """Its commits do not leave before then, while its stream goes on."""
    pending: int = 0
    """Asynchronous commits without an answer."""
    marks: int = 0
    went_back: set[TopicPartition] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Of its node."""
        return f"consumer-{self.number}"

    @property
    def up(self) -> bool:
        """Whether its process is there."""
        return self.node is not None

    def start(self) -> None:
        """A new process, and a new membership."""
        lab = self.cluster.lab
        self.incarnation += 1
        self.node, self.consumer = lab.node(self.name), None
        self.closing = self.paused = False
        self.pending = 0
        self.habits = Habits.draw(self.rng, seeks_back=self.seeks_back)
        task = lab.loop.create_task(self._live(), name=self.name, context=self.node.context.copy())
        task.add_done_callback(partial(self._ended, self.node))

    def die(self) -> None:
        """Killed."""
        node, self.node = self.node, None
        if node is not None:
            self.cluster.lab.network.kill(node)

    def _ended(self, node: Node, task: asyncio.Task[None]) -> None:
        """The process ends by itself."""
        if node.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.tell(f"crash: {self.name}: {type(error).__name__}: {error}")
        if self.node is node:
            self.die()

    # --- the application ------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.5)
        while not self.closing:
            consumer = self.consumer = self._open()
            try:
                await self._subscribe(consumer)
                await self._read(consumer)
            except HeadraceError as error:
                self.counts[f"application: {type(error).__name__}"] += 1
                if type(error).__name__ == "FencedInstanceId":
                    self.counts["consumers failed"] += 1
                    self.gone = True
                    break
                await self._close(consumer)
                await asyncio.sleep(BEGIN_AGAIN_S)
        if self.consumer is not None:
            await self._close(self.consumer)

    @staticmethod
    async def _close(consumer: Consumer) -> None:
        try:
            await consumer.close(CLOSE_S_MAX)
        except HeadraceError:
            pass

    def _open(self) -> Consumer:
        classic = self.group.protocol == CLASSIC
        settings: dict[str, Any] = {
            "group_protocol": self.group.protocol,
            "max_poll_interval_ms": 9_000,
            "default_api_timeout_ms": 15_000,
            "metadata_max_age_ms": 2_000,
            "fetch_max_wait_ms": 5_000,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": self.habits.auto_commit,
            "auto_commit_interval_ms": self.habits.auto_commit_ms,
        }
        if classic:
            settings |= {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
            settings["partition_assignment_strategy"] = list(self.group.assignors)
        else:
            settings["group_remote_assignor"] = self.group.assignors[0]
        if self.instance_id is not None:
            settings["group_instance_id"] = self.instance_id
        servers = self.cluster.address
        return Consumer(bootstrap_servers=servers, group_id=self.group.name, **settings)

    async def _subscribe(self, consumer: Consumer) -> None:
        wanted: dict[str, Any] = {"pattern": PATTERN} if self.group.by_pattern else {"topics": self.topics()}
        await consumer.subscribe(**wanted, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    async def _read(self, consumer: Consumer) -> None:
        rng, loop = self.rng, asyncio.get_running_loop()
        while not self.closing:
            await asyncio.sleep(self.habits.poll_s * (0.5 + rng.random()))
            while loop.time() < self.silent_until:  # healing may end it
                await asyncio.sleep(SILENT_LOOK_S)
            await consumer.poll(timeout_ms=0, max_records=rng.randrange(6))
            await self._commit(consumer)

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.went_back.difference_update(partitions)

    async def _revoked(self, partitions: list[TopicPartition]) -> None:
        if self.habits.commits_in_callback and self.consumer is not None:
            await self._try_to_commit(self.consumer, 2_000)
        await self._take_time()

    async def _lost(self, partitions: list[TopicPartition]) -> None:
        self.counts["partitions lost"] += len(partitions)
        await self._take_time()

    async def _take_time(self) -> None:
        if self.habits.slow_callback_s and self.rng.random() < 0.5 and not self.calm:
            await asyncio.sleep(self.rng.random() * self.habits.slow_callback_s)

    async def _commit(self, consumer: Consumer) -> None:
        rng, habits = self.rng, self.habits
        if self.quiet or rng.randrange(habits.commits_one_in) or (habits.auto_commit and rng.random() < 0.7):
            return
        if habits.seeks_back and rng.random() < 0.05:
            await self._seek_back(consumer)
        if rng.random() < habits.waits:
            await self._try_to_commit(consumer, rng.choice((500, 5_000)))
        elif self.pending < COMMITS_MAX:
            self._commit_without_waiting(consumer)

    async def _seek_back(self, consumer: Consumer) -> None:
        for tp, at in consumer._out.positions().items():
            consumer.seek(tp, max(0, at.offset - self.rng.randrange(4)))
            self.went_back.add(tp)

    def _positions(self, consumer: Consumer) -> dict[PartitionLike, int | Committed] | None:
        """What to commit; None: whatever was handed out."""
        if not self.habits.seeks_back:
            return None
        self.marks += 1
        found: dict[PartitionLike, int | Committed] = {}
        for tp, at in consumer._out.positions().items():
            text = f"{self.name}.{self.incarnation}.{self.marks}{'back' if tp in self.went_back else ''}"
            found[tp] = Committed(at.offset, at.leader_epoch, text)
        return found

    def _commit_without_waiting(self, consumer: Consumer) -> None:
        marks, positions = self.marks, self._positions(consumer)

        def done(offsets: dict[TopicPartition, Committed], error: HeadraceError | None) -> None:
            self.pending -= 1
            if error is None:
                self.counts["commits answered"] += 1
                if marks + 1 == self.marks:
                    self.went_back.difference_update(offsets)

        self.pending += 1
        consumer.commit_async(done, positions)

    async def _try_to_commit(self, consumer: Consumer, timeout_ms: int) -> None:
        positions = self._positions(consumer)
        try:
            await consumer.commit(positions, timeout_ms=timeout_ms)
        except HeadraceError as error:
            self.counts[f"commits: {type(error).__name__}"] += 1
            return
        self.counts["commits answered"] += 1
        if positions is not None:
            self.went_back.difference_update(TopicPartition(*each) for each in positions)
