"""
One worker: reads records, feeds tasks, and commits what they write, their state and their positions in one
transaction. Whatever goes wrong between two commits, tasks and positions go back to the last one, and the same records
are fed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from math import ceil
from typing import Final

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import (
    HeadraceError,
    Internal,
    NotFound,
    OffsetOutOfRange,
    ProducerFenced,
    Rejected,
    Then,
    UnknownTopicOrPartition,
)
from headrace_common.runtime.failpoints import failpoint
from headrace_streams.config import StreamsConfig
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.outputs import Output
from headrace_streams.core.state import changelog
from headrace_streams.core.state.changelog import Progress
from headrace_streams.dsl.app import App
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.nodes import changelog_topic, repartition_topic
from headrace_streams.ports import (
    Checkpoint,
    InternalTopic,
    Sent,
    TopicFacts,
)
from headrace_streams.runtime.owned import Kept, Outside, Owned, as_output, moved, no_store
from headrace_streams.runtime.restoring import Restored, progress_of, restore

_log = logging.getLogger(__name__)
_POLL_MS: Final = 100.0
_TOPIC_WAIT_MS: Final = 500.0
_BACK_OFF_MS: Final = 100.0
_RENEW_MS: Final = 5_000.0
_TOPIC: Final = "topic "


class Worker:
    """
    One process's part of an app: here all its tasks. Another worker of the same app that starts takes over: this one is
    fenced, and stops.
    """

    def __init__(self, app: App, config: StreamsConfig, outside: Outside) -> None:
        self._app = app
        self._config = config
        self._outside = outside
        self._owned: list[Owned] = []
        self._of: dict[TopicPartition, Owned] = {}
        self._in_transaction = False
        self._rows = 0
        self._committed_at_ms = 0.0
        self._wrote_at_ms = 0.0
        self._trimmed_at_ms = 0.0
        self._repartitions: set[str] = set()
        self._trouble_since_ms: float | None = None
        self.restoring: tuple[int, int] = (0, 0)
        """Rows of changelogs that were restored, and those left at most."""
        self.commits = 0
        """Transactions that were committed."""

    # --- start ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """
        Become the app's worker: topics, writer, tasks, their state and positions.

        Raises:
            NotAllowed: the plan does not fit the topics.
            UnknownTopicOrPartition: a topic that is read does not exist.
        """
        assembly, facts = await self._assemble()
        await self._outside.writer.start()
        self._own(assembly, facts)
        await self._restore()
        await self._place()
        now = self._outside.clock.monotonic_ms()
        self._committed_at_ms = self._wrote_at_ms = self._trimmed_at_ms = now
        _log.info("%s runs with %d tasks", self._app.name, len(self._owned))

    async def _assemble(self) -> tuple[Assembly, dict[str, TopicFacts]]:
        facts = await self._existing(Assembly.topics_of(self._app.graph, self._app.on_error))
        assembly = Assembly(
            self._app.name, self._app.graph, {name: fact.partitions for name, fact in facts.items()}, self._app.on_error
        )
        if not assembly.parts:
            raise NotAllowed(f"{self._app.name} reads no topic: give it one, stream = app.stream('orders', value=…)")
        internal = [
            InternalTopic(repartition_topic(self._app.name, name), count, compacted=False)
            for name, count in assembly.repartitions.items()
        ]
        self._repartitions = {topic.name for topic in internal}
        internal += [
            InternalTopic(changelog_topic(self._app.name, part.name), assembly.tasks_of(part), compacted=True)
            for part in assembly.parts
            if part.stateful
        ]
        facts |= await self._outside.topics.make(internal)
        assembly.check({topic.name: facts[topic.name].partitions for topic in internal})
        return assembly, facts

    async def _existing(self, names: list[str]) -> dict[str, TopicFacts]:
        """The topics that the program reads; waits for those that do not exist."""
        clock = self._outside.clock
        until_ms = clock.monotonic_ms() + self._config.default_api_timeout_ms
        while True:
            facts = await self._outside.topics.find(names)
            missing = [name for name in names if name not in facts]
            if not missing:
                return facts
            if clock.monotonic_ms() >= until_ms:
                raise UnknownTopicOrPartition(
                    f"{self._app.name} reads and writes topics that do not exist: {', '.join(missing)}; create them "
                    f"first: headrace topic create {missing[0]}"
                )
            _log.warning("%s waits for topics that do not exist: %s", self._app.name, ", ".join(missing))
            await clock.sleep_ms(_TOPIC_WAIT_MS)

    def _own(self, assembly: Assembly, facts: Mapping[str, TopicFacts]) -> None:
        for part in assembly.parts:
            topics = (*part.topics, *(repartition_topic(self._app.name, hop.name) for hop in part.hops))
            log = changelog_topic(self._app.name, part.name)
            for partition in range(assembly.tasks_of(part)):
                store = self._outside.stores.open(part.name, partition) if part.stateful else None
                owned = Owned(part, partition, assembly.make(part, partition), topics, store, Progress())
                if store is not None:
                    owned.changelog = TopicPartition(log, partition)
                    owned.log_id = f"{facts[log].topic_id}-{partition}"
                owned.basis = part.form | {_TOPIC + topic: facts[topic].topic_id for topic in topics}
                self._owned.append(owned)
                self._of |= {TopicPartition(topic, partition): owned for topic in topics}

    async def _restore(self) -> None:
        wanted = {
            owned.changelog: Restored(owned.store, owned.log_id)
            for owned in self._owned
            if owned.changelog is not None and owned.store is not None
        }

        def told(done: int, left: int) -> None:
            self.restoring = (done, left)
            if left:
                _log.info("%s restores state: %d rows done, at most %d left", self._app.name, done, left)

        trusted_ms = self._config.delete_retention_ms // 2
        outside = self._outside
        await restore(outside.changelogs, wanted, outside.clock, trusted_ms, told, outside.compute)

    async def _place(self) -> None:
        """Positions and event times of the last commit; a task with state has them in its changelog."""
        committed = await self._outside.reader.committed(list(self._of))
        for owned in self._owned:
            of_group = {
                topic: at
                for topic in owned.topics
                if (at := committed.get(TopicPartition(topic, owned.partition))) is not None
            }
            if owned.store is not None:
                owned.progress = progress_of(owned.store)
                self._check_basis(owned)
                await self._check_same(owned, of_group)
            else:
                owned.progress = Progress(of_group)
            owned.positions = dict(owned.progress.positions)
            store = owned.store
            owned.task.open(store.cold if store is not None else no_store, owned.progress.watermarks)
        if all(at is None for at in committed.values()):
            self._check_new()
        await self._read()

    def _check_new(self) -> None:
        """
        The group has no positions: then there is no state that has counted what would be read again.

        Raises:
            NotFound: there is.
        """
        counted = [owned.label for owned in self._owned if owned.store is not None and owned.progress.positions]
        if counted and any(owned.store is None for owned in self._owned):
            raise NotFound(
                f"the group {self._app.name} has no offsets, so they were deleted or have expired, and "
                f"task {counted[0]} has state of what would be read again: set the group's offsets, or {self._anew}"
            )

    def _check_basis(self, owned: Owned) -> None:
        """
        Raises:
            NotAllowed: the program would read its state wrongly, or miss records of a topic that was made anew.
        """
        for what, now in owned.basis.items():
            then = owned.progress.basis.get(what, now)
            if then != now and what.startswith(_TOPIC):
                raise NotAllowed(
                    f"the {what} was deleted and made anew, and the state of task {owned.label} belongs to what was in "
                    f"it: {self._anew}"
                )
            if then != now:
                raise NotAllowed(
                    f"the state {what!r} is kept as {then}; the program wants {now}: give it another name= there, "
                    f"and it begins empty. To read everything again, {self._anew}"
                )

    @property
    def _anew(self) -> str:
        name = self._app.name
        return f"start under another app name, or delete the group {name} and all topics whose names begin with {name}."

    async def _check_same(self, owned: Owned, of_group: Mapping[str, int]) -> None:
        for topic, at in of_group.items():
            if owned.progress.positions.get(topic) != at:
                # A worker that stood still while it restored, and was replaced meanwhile, cannot commit this.
                await self._outside.writer.begin()
                await self._outside.writer.commit({TopicPartition(topic, owned.partition): at})
                raise NotFound(
                    f"the state of task {owned.label} belongs to offset {owned.progress.positions.get(topic)} of "
                    f"{topic}, and the group {self._app.name} stands at {at}: the group or the changelog was "
                    f"changed by hand, or the program has kept no state there so far. Set the group's offset back, or "
                    f"{self._anew}"
                )

    async def _read(self) -> None:
        """Read on where each task is."""
        now = self._outside.clock.monotonic_ms()
        positions = {}
        for tp, owned in self._of.items():
            positions[tp] = owned.positions.get(tp.topic, -1)
            owned.rows_at_ms[tp.topic] = now
            owned.idle.clear()
        await self._outside.reader.assign(positions)

    # --- work -------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """
        Work until ``stop`` is set; then commit.

        Raises:
            RowFailed, StateFailed: the program cannot go on; nothing since the last commit counts.
            Fenced: another worker has taken the app over.
        """
        while not stop.is_set():
            try:
                await self.step()
            except HeadraceError as error:
                await self._recover(error)
        await self._settle()

    async def _settle(self) -> None:
        try:
            await self._commit()
        except HeadraceError as error:
            await self._recover(error)

    async def step(self) -> None:
        """Read once, feed what came, commit if it is time."""
        due_ms = self._committed_at_ms + self._config.commit_interval_ms
        left_ms = max(0, ceil(due_ms - self._outside.clock.monotonic_ms()))
        wait_ms = min(_POLL_MS, left_ms) if self._in_transaction else _POLL_MS
        for batch in await self._outside.reader.poll(wait_ms, self._config.max_batch_rows):
            await self._feed(batch)
        await self._rest()
        if self._rows >= self._config.commit_rows or self._outside.clock.monotonic_ms() >= due_ms:
            await self._commit()

    async def _feed(self, batch: PartitionTable) -> None:
        owned = self._of[TopicPartition(batch.topic, batch.partition)]
        owned.touched |= batch.table.num_rows > 0 or owned.positions.get(batch.topic) != batch.next_offset
        if batch.table.num_rows:
            await self._outside.compute(owned.task.feed, batch.topic, batch.table)
            await self._send(owned.task.take())
            self._rows += batch.table.num_rows
            failpoint("streams.fed")
        if batch.table.num_rows or batch.lag != 0:
            owned.rows_at_ms[batch.topic] = self._outside.clock.monotonic_ms()
            owned.idle.discard(batch.topic)
        owned.positions[batch.topic] = batch.next_offset

    async def _rest(self) -> None:
        """Tell tasks of topics that have stood at their ends for long."""
        now = self._outside.clock.monotonic_ms()
        for owned in self._owned:
            for topic in owned.part.topics:
                if topic not in owned.idle and now - owned.rows_at_ms[topic] >= self._config.idle_after_ms:
                    owned.idle.add(topic)
                    owned.touched = True
                    await self._outside.compute(owned.task.idle, topic)
                    await self._send(owned.task.take())

    async def _send(self, outputs: list[Output]) -> None:
        for output in outputs:
            await self._begin()
            await self._outside.writer.send(output)

    async def _begin(self) -> None:
        if not self._in_transaction:
            await self._outside.writer.begin()
            self._in_transaction = True

    async def _commit(self) -> None:
        """One transaction: what was written, state, positions."""
        touched = [owned for owned in self._owned if owned.touched]
        for owned in touched:
            await self._outside.compute(owned.task.flush)
            await self._send(owned.task.take())
        failpoint("streams.flushed")
        kept = [await self._prepare(owned) for owned in touched]
        if kept:
            await self._begin()
            sent = [await self._outside.writer.send(as_output(k.owned, k.rows)) if k.rows else None for k in kept]
            failpoint("streams.changelog")
            await self._outside.writer.commit(moved(kept))
            self._in_transaction = False
            failpoint("streams.committed")
            for k, of_task in zip(kept, sent, strict=True):
                await self._keep(k, of_task)
            failpoint("streams.kept")
            self._rows = 0
            self.commits += 1
            self._trouble_since_ms = None
            self._wrote_at_ms = self._outside.clock.monotonic_ms()
        elif self._outside.clock.monotonic_ms() - self._wrote_at_ms >= _RENEW_MS:
            await self._renew()
        self._committed_at_ms = self._outside.clock.monotonic_ms()
        await self._trim()

    async def _renew(self) -> None:
        """
        Nothing came for a while: commit the positions once more. A worker whose app runs elsewhere now learns it so,
        and positions of a quiet topic do not expire.
        """
        positions = {
            TopicPartition(topic, owned.partition): at
            for owned in self._owned
            for topic, at in owned.progress.positions.items()
        }
        if positions:
            await self._begin()
            await self._outside.writer.commit(positions)
            self._in_transaction = False
            self._trouble_since_ms = None
        self._wrote_at_ms = self._outside.clock.monotonic_ms()

    async def _prepare(self, owned: Owned) -> Kept:
        """What a commit will say of a task."""
        progress = Progress(dict(owned.positions), owned.task.watermarks(), {**owned.progress.basis, **owned.basis})
        if owned.store is None:
            return Kept(owned, progress, [])
        rows = changelog.rows(await self._outside.compute(owned.task.changes), progress)
        changelog.check_sizes(rows)
        return Kept(owned, progress, rows)

    async def _keep(self, kept: Kept, sent: Sent | None) -> None:
        """The commit stands: the cold tier follows."""
        owned = kept.owned
        owned.progress = kept.progress
        if sent is not None:
            assert owned.store is not None
            checkpoint = Checkpoint(owned.log_id, sent.end(), self._outside.clock.now_ms())
            await self._outside.compute(owned.store.write, kept.rows, checkpoint)
        owned.task.settle()
        owned.touched = False

    async def _trim(self) -> None:
        now = self._outside.clock.monotonic_ms()
        if now - self._trimmed_at_ms < self._config.trim_interval_ms or not self._repartitions:
            return
        self._trimmed_at_ms = now
        positions = {
            tp: owned.progress.positions[tp.topic]
            for tp, owned in self._of.items()
            if tp.topic in self._repartitions and tp.topic in owned.progress.positions
        }
        try:
            await self._outside.topics.trim(positions)
        except HeadraceError as error:
            _log.warning(
                "repartition topics of %s were not trimmed, which costs space alone: %s", self._app.name, error
            )

    # --- failures ---------------------------------------------------------------------------------------------------

    async def _recover(self, error: HeadraceError) -> None:
        """
        After a failure between two commits: back to the last one.

        Raises:
            HeadraceError: it cannot go on, or has not got on for ``default_api_timeout_ms``.
        """
        clock = self._outside.clock
        now = clock.monotonic_ms()
        if self._trouble_since_ms is None:
            self._trouble_since_ms = now
        lasting = now - self._trouble_since_ms >= self._config.default_api_timeout_ms
        if isinstance(error, OffsetOutOfRange):
            await self._check_alone(error)
        if error.then == Then.FENCED or isinstance(error, (Rejected, Internal)) or lasting:
            raise error
        _log.warning("%s goes back to its last commit: %s", self._app.name, error)
        if self._in_transaction:
            await self._outside.writer.abort()
            self._in_transaction = False
        for owned in self._owned:
            await self._outside.compute(owned.task.rewind, owned.progress.watermarks)
            owned.positions = dict(owned.progress.positions)
            owned.touched = False
        self._rows = 0
        await clock.sleep_ms(_BACK_OFF_MS)
        await self._read()

    async def _check_alone(self, error: HeadraceError) -> None:
        """
        Records that this worker was to read are gone. If the group has moved on without it, that is why.

        Raises:
            ProducerFenced: another start of the app has taken over.
        """
        committed = await self._outside.reader.committed(list(self._of))
        for tp, owned in self._of.items():
            if committed[tp] != owned.progress.positions.get(tp.topic):
                raise ProducerFenced(
                    f"{self._app.name} runs elsewhere: its group has moved on to {committed[tp]} in {tp} without this "
                    "worker; close it"
                ) from error

    async def close(self) -> None:
        """Let go of everything; what was not committed is done again by whoever comes next."""
        await self._outside.writer.close()
        await self._outside.reader.close()
        await self._outside.changelogs.close()
        for owned in self._owned:
            if owned.store is not None:
                owned.store.close()
