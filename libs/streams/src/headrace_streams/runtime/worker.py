"""
One worker: a member of the app's work group. It takes tasks over, reads their records, feeds them, and commits what
they write, their state and their positions in one transaction. Whatever goes wrong between two commits, tasks and
positions go back to the last one, and the same records are fed again. A worker that was put out of the group begins
anew, as another member.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from math import ceil
from typing import Any, Final

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.error_kinds import Kind
from headrace_common.core.errors import (
    FencedInstanceId,
    HeadraceError,
    Internal,
    InvalidRecord,
    OffsetOutOfRange,
    RecordTooLarge,
    Rejected,
    UnknownTopicOrPartition,
)
from headrace_common.runtime.failpoints import failpoint
from headrace_streams.config import EXACTLY_ONCE, StreamsConfig
from headrace_streams.core.errors import Blocked
from headrace_streams.core.feed import Portion
from headrace_streams.core.outputs import Output
from headrace_streams.core.state import changelog
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.state.changelog import Progress
from headrace_streams.dsl.app import App
from headrace_streams.patience import PAUSE_MS, Patience
from headrace_streams.ports import Checkpoint, Sent, Writer
from headrace_streams.runtime.assembling import Assembled, Assembling
from headrace_streams.runtime.figures import Figures
from headrace_streams.runtime.following import Changelogs
from headrace_streams.runtime.merging import Merging
from headrace_streams.runtime.missing import Missing
from headrace_streams.runtime.owned import Kept, Outside, Owned, as_output, moved
from headrace_streams.runtime.pacing import Pace
from headrace_streams.runtime.queries import Queries
from headrace_streams.runtime.restoring import Restoring
from headrace_streams.runtime.seat import Seat
from headrace_streams.runtime.snapshotting import Snapshotting
from headrace_streams.runtime.taking import Differs

_log = logging.getLogger(__name__)
_POLL_MS: Final = 100
_HEAR_MS: Final = 20.0
"""How often the group is asked while there is work."""
_TAKING_MS: Final = 10
_LAGS_MS: Final = 1_000.0
_SETTLED_MS: Final = 1_000.0
_TIDY_MS: Final = 3_600_000.0
_COMMITS_IN_TIMEOUT: Final = 4
"""A transaction that has been open for a fourth of ``transaction_timeout_ms`` is committed."""
_CALM_MS: Final = 10_000.0
"""Trouble that comes back after so long is new trouble."""


class Worker:
    """One process's part of an app: the tasks that its group gives it, and those that it stands by for."""

    def __init__(self, app: App, config: StreamsConfig, outside: Outside) -> None:
        self._app = app
        self._config = config
        self._outside = outside
        self._patience = Patience(outside.clock, config.default_api_timeout_ms)
        self._cache = StateCache(config.state_cache_bytes)
        self.figures = Figures(self._cache)
        self._snapshotting = Snapshotting(config, outside, self.figures.counts)
        self._changelogs = Changelogs(
            outside.changelogs,
            outside.clock,
            config.trusted_ms,
            outside.compute,
            self._patience,
            None if outside.snapshots is None else self._snapshotting.bring,
        )
        self._assembling = Assembling(app, config, outside)
        self._assembled: Assembled
        self._missing = Missing(app.name, config.default_api_timeout_ms)
        self._restoring = Restoring()
        self._seat: Seat | None = None
        self._following: asyncio.Task[None] | None = None
        self._taking_snapshots: asyncio.Task[None] | None = None
        self._of: dict[TopicPartition, Owned] = {}
        self._merging: dict[Owned, Merging] = {}
        self._paused: set[TopicPartition] = set()
        self._rows = 0
        timeout_ms = config.transaction_timeout_ms
        self._pace = Pace(timeout_ms / (2 * _COMMITS_IN_TIMEOUT), config.max_batch_rows)
        self._began_ms = 0.0
        self._heard_at_ms = self._told_lags_at_ms = float("-inf")
        self._committed_at_ms = self._trimmed_at_ms = self._looked_at_ms = self._tidied_at_ms = 0.0
        self._final: HeadraceError | None = None
        self._blocked = False
        self._trouble_since_ms = self._trouble_at_ms = float("-inf")
        self.settled = asyncio.Event()
        """It is a member, and has had all its tasks for a moment."""
        self._unsettled_at_ms = 0.0
        self.queries = Queries(outside.look)

    # --- membership -------------------------------------------------------------------------------------------------

    async def assemble(self) -> None:
        """
        Find the app's topics; waits for those that do not exist, and for workers of another program of its name to end.
        It comes before ``start``, and can be cancelled.

        Raises:
            NotAllowed: the plan does not fit the topics, or another program runs under the app's name.
            UnknownTopicOrPartition: a topic does not exist.
            NotFound: positions are gone, and there is state of what would be read again.
        """
        self._assembled = self.queries.assembled = await self._assembling.assemble()
        await self._assembling.check_name(self._assembled, self._patience)
        await self._assembling.check_positions(self._assembled, self._patience)

    async def start(self) -> None:
        """Join those that share the app's tasks."""
        self._following = asyncio.create_task(self._changelogs.run(), name="changelogs")
        self._taking_snapshots = asyncio.create_task(self._snapshotting.run(), name="snapshots")
        await self._join()
        self._committed_at_ms = self._trimmed_at_ms = self._looked_at_ms = self._outside.clock.monotonic_ms()

    async def _join(self) -> None:
        while True:
            declaration = self._assembled.declaration(self._config)
            self._lags = await self._lags_of_disk()
            membership = await self._outside.join(declaration, self._lags)
            seat = self._seat = Seat(
                self._app.name, self._config, self._outside, self._changelogs, self._assembled, membership
            )
            self.figures.owned = self.queries.owned = self._snapshotting.owned = seat.owned
            self.queries.followed = seat.followed
            self.figures.counts["joins"] += 1
            self._heard_at_ms = self._told_lags_at_ms = float("-inf")
            if await self._is_same():
                return
            _log.warning("%s joins anew: its topics have changed meanwhile", self._app.name)
            await self._get_up()

    async def _is_same(self) -> bool:
        """
        Now that this is a member no reset begins. Has one deleted the topics that it had assembled before?

        Raises:
            NotAllowed: one has begun and not ended.
        """
        before = self._assembled.ids, self._assembled.specs.keys()
        try:
            self._assembled = self.queries.assembled = await self._assembling.assemble()
        except HeadraceError:
            await self._get_up()
            raise
        return (self._assembled.ids, self._assembled.specs.keys()) == before

    async def _lags_of_disk(self) -> dict[str, int]:
        """How far what is on the disk is behind, for each task that keeps state."""
        logs = {spec.changelog: spec for spec in self._assembled.specs.values() if spec.changelog is not None}
        ends = await self._changelogs.ends(list(logs)) if logs else {}
        checkpoints = await self._tidy()
        lags = {}
        for log, spec in logs.items():
            kept = checkpoints.get((spec.part.name, spec.partition))
            begin = kept.next_offset if kept is not None and kept.log_id == spec.log_id else 0
            lags[spec.label] = max(0, ends[log] - begin)
        return lags

    async def _hear(self) -> None:
        """
        What the group wants now.

        Raises:
            HeadraceError: of a task that cannot be taken, of a changelog, or of the membership.
        """
        assert self._following is not None
        if self._following.done():
            error = self._following.exception()
            self._final = error if isinstance(error, HeadraceError) else None
            self._following.result()
        seat = self._here
        now = self._outside.clock.monotonic_ms()
        busy = seat.owned and not (seat.revoked or seat.assigned or seat.taken)
        if busy and now - self._heard_at_ms < _HEAR_MS:
            return
        self._heard_at_ms = now
        wait_ms = 0 if seat.owned else _TAKING_MS if seat.taken else _POLL_MS
        change = await seat.membership.poll(wait_ms)
        if change is not None:
            await seat.change(change)
        if seat.revoked:
            await self._give_up(seat)
        await seat.raise_epochs()
        await seat.take()
        await self._take_ready(seat)
        await seat.stand_by()
        self._tell_lags(seat)
        self._tell_state(seat)

    @property
    def _here(self) -> Seat:
        assert self._seat is not None, "start comes first"
        return self._seat

    async def _take_ready(self, seat: Seat) -> None:
        """
        Feed what has been taken over.

        Raises:
            HeadraceError: a task cannot be taken.
        """
        try:
            ready = seat.settle()
        except HeadraceError as error:
            await self._prove(error)
            self._final = error
            raise
        if ready:
            for owned in seat.owned.values():
                owned.task.tell(self._outside.clock.now_ms())
            await self._read(seat)

    async def _prove(self, error: HeadraceError) -> None:
        """
        State and positions differ. Is it that another worker has both by now?

        Raises:
            UnknownMemberId: it is.
        """
        if isinstance(error, Differs):
            await self._commit()
            await self._begin()
            await self._writer.commit(error.at)
            self._here.in_transaction = False

    async def _read(self, seat: Seat) -> None:
        """Read on where each task is."""
        self.figures.unseen()
        self._of = {tp: owned for owned in seat.owned.values() for tp in owned.spec.partitions}
        wait_ms, rows = self._config.join_wait_ms, self._config.max_batch_rows
        self._merging = {o: Merging(o, wait_ms, rows) for o in seat.owned.values() if o.spec.part.in_order}
        self._paused = set()
        await self._outside.reader.assign({tp: owned.positions.get(tp.topic, -1) for tp, owned in self._of.items()})
        tasks = "1 task" if len(seat.owned) == 1 else f"{len(seat.owned)} tasks"
        _log.info("%s works on %s and stands by for %d", self._app.name, tasks, len(seat.followed))

    async def _give_up(self, seat: Seat) -> None:
        """What was revoked is committed, and somebody else's."""
        await self._commit()
        for item in seat.revoked:
            self._lags[item] = 0
            await seat.leave(item)
        seat.membership.give_up(*seat.revoked)
        seat.revoked.clear()
        await self._read(seat)

    def _tell_lags(self, seat: Seat) -> None:
        now = self._outside.clock.monotonic_ms()
        if not seat.followed or now - self._told_lags_at_ms < _LAGS_MS:
            return
        self._told_lags_at_ms = now
        self._lags |= seat.lags()
        seat.membership.report(lags=self._lags)

    def _tell_state(self, seat: Seat) -> None:
        now = self._outside.clock.monotonic_ms()
        taking = len(seat.taken) + len(seat.assigned)
        warming = len(seat.warm_ups & seat.followed.keys())
        standing = len(seat.followed) - warming
        self.figures.states = {
            "running": len(seat.owned),
            "taking": taking,
            "standby": standing,
            "warm_up": warming,
        }
        self.figures.restoring = seat.lags()
        self.figures.counts["restored_records"] = self._changelogs.records
        left = {item: count for item, count in self.figures.restoring.items() if item in seat.taken}
        if said := self._restoring.seen(left, now):
            _log.info("%s: %s", self._app.name, said)
        if self.settled.is_set():
            return
        try:
            seat.membership.group_metadata()
        except HeadraceError:
            taking += 1
        if taking:
            self._unsettled_at_ms = now
        elif now - self._unsettled_at_ms >= _SETTLED_MS:
            self.settled.set()

    # --- work -------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """
        Work until ``stop`` is set; then commit.

        Raises:
            RowFailed, StateFailed: the program cannot go on; nothing since the last commit counts.
            FencedInstanceId: another process is this worker now.
        """
        while not stop.is_set():
            await self._persist(self.step)
        await self._persist(self._commit)

    async def _persist(self, do: Callable[[], Awaitable[None]]) -> None:
        """
        Do something, again after each failure that one gets over.

        Raises:
            HeadraceError: it cannot go on, or has not got on for ``default_api_timeout_ms``.
        """
        failure: HeadraceError | None = None
        while True:
            try:
                if failure is not None:
                    await self._recover(failure)
                await do()
                return
            except HeadraceError as error:
                self._judge(error)
                failure = error

    async def step(self) -> None:
        """Hear the group, read once, feed what came, commit if it is time."""
        await self._hear()
        await self._assembling.globals.poll()
        seat = self._here
        if not seat.owned:
            return
        due_ms = self._committed_at_ms + self._config.commit_interval_ms
        left_ms = max(0, ceil(due_ms - self._outside.clock.monotonic_ms()))
        wait_ms = min(_POLL_MS, left_ms) if seat.in_transaction or self._rows else _POLL_MS
        self._pause()
        for batch in await self._outside.reader.poll(wait_ms, self._config.max_batch_rows):
            await self._feed(batch)
        for merging in list(self._merging.values()):
            await self._feed_all(merging.owned, merging.take(self._outside.clock.monotonic_ms()))
            await self._commit_in_time()
        await self._rest()
        if self._is_full() or self._is_open_for_long() or self._outside.clock.monotonic_ms() >= due_ms:
            await self._commit()
            await self._look_at_topics()
            if self._outside.clock.monotonic_ms() - self._tidied_at_ms >= _TIDY_MS:
                await self._tidy()

    def _is_full(self) -> bool:
        """Whether enough has been done for a commit, whatever the time."""
        if self._rows >= self._config.commit_rows:
            return True
        touched = [owned.task for owned in self._here.owned.values() if owned.touched]
        return sum(task.dirty_bytes() for task in touched) >= self._config.commit_state_bytes

    async def _look_at_topics(self) -> None:
        """
        Has one that is read been enlarged, or does a pattern match one more? Then the app has more tasks, or these read
        more, or it cannot go on; which, is seen at the start. One that was deleted is said.

        Raises:
            NotAllowed: it cannot.
            UnknownTopicOrPartition: one that the program names has been away for ``default_api_timeout_ms``.
        """
        now = self._outside.clock.monotonic_ms()
        if now < min(self._looked_at_ms + self._config.metadata_max_age_ms, self._missing.until_ms):
            return
        self._looked_at_ms = now
        sources = {topic for spec in self._assembled.specs.values() for topic in spec.part.topics}
        facts = await self._outside.topics.find(sorted(sources | self._assembling.globals.tables.keys()))
        try:
            self._missing.seen(set(self._app.graph.read_by_name) - facts.keys(), now)
        except UnknownTopicOrPartition as error:
            self._final = error
            raise
        await self._assembling.globals.read(facts)
        tasks = Counter(topic for spec in self._assembled.specs.values() for topic in spec.part.topics)
        news = [
            f"{topic} has more partitions" for topic in sources & facts.keys() if facts[topic].partitions > tasks[topic]
        ]
        matched = [topic for node in (await self._assembling.on_topics()).patterns for topic in node.topics]
        news += [f"{topic} is there" for topic in matched if topic not in sources]
        if news:
            _log.warning("%s joins anew: %s", self._app.name, ", ".join(news))
            await self._get_up()
            self._assembled = self.queries.assembled = await self._assembling.assemble()
            await self._join()

    async def _feed(self, batch: PartitionTable) -> None:
        owned = self._of[TopicPartition(batch.topic, batch.partition)]
        portion = Portion(batch.topic, batch.table, batch.next_offset)
        if owned in self._merging:
            self._merging[owned].offer(portion, at_end=batch.lag == 0)
        else:
            await self._feed_in_parts(owned, portion)
        if batch.table.num_rows or batch.lag != 0:
            owned.rows_at_ms[batch.topic] = self._outside.clock.monotonic_ms()
            owned.idle.discard(batch.topic)
        self.figures.seen(batch)

    async def _feed_in_parts(self, owned: Owned, portion: Portion) -> None:
        """Feed records of one input, no more at a time than its transaction has time for."""
        left = portion.records
        while left.num_rows:
            began_ms = self._outside.clock.monotonic_ms()
            first = left.slice(0, self._pace.rows(portion.topic))
            left = left.slice(first.num_rows)
            next_offset = int(left["offset"][0].as_py()) if left.num_rows else portion.next_offset
            await self._feed_all(owned, [Portion(portion.topic, first, next_offset)])
            self._pace.took(portion.topic, first.num_rows, self._outside.clock.monotonic_ms() - began_ms)
            await self._commit_in_time()
        if not portion.records.num_rows:
            await self._feed_all(owned, [portion])

    async def _commit_in_time(self) -> None:
        if self._is_open_for_long():
            await self._commit()

    def _is_open_for_long(self) -> bool:
        """Whether the coordinator would soon abort the transaction, and all would be done again, for ever."""
        open_ms = self._outside.clock.monotonic_ms() - self._began_ms
        return self._here.in_transaction and open_ms >= self._config.transaction_timeout_ms / _COMMITS_IN_TIMEOUT

    async def _feed_all(self, owned: Owned, portions: list[Portion]) -> None:
        """Feed records of some of a task's inputs, together."""
        given = [(one.topic, one.records) for one in portions if one.records.num_rows]
        owned.touched |= bool(given) or any(owned.positions.get(one.topic) != one.next_offset for one in portions)
        if given:
            owned.task.tell(self._outside.clock.now_ms())
            await self._program(owned.task.feed_together, given)
            await self._send(owned.task.take())
            for topic, records in given:
                self._rows += records.num_rows
                self.figures.fed(topic, records)
            failpoint("streams.fed")
        owned.positions |= {one.topic: one.next_offset for one in portions}

    def _pause(self) -> None:
        """Read no more of inputs that are ahead of the others of their tasks."""
        full = {TopicPartition(t, m.owned.spec.partition) for m in self._merging.values() for t in m.full()}
        if full != self._paused:
            self._outside.reader.pause(full)
            self._paused = full

    async def _rest(self) -> None:
        """Tell tasks of topics that have stood at their ends for long, and of the time where they wait for it."""
        now = self._outside.clock.monotonic_ms()
        quiet: dict[TopicPartition, Owned] = {}
        for owned in self._here.owned.values():
            if (due := owned.task.due) is not None and due <= self._outside.clock.now_ms():
                owned.touched = True
                await self._program(owned.task.tick, self._outside.clock.now_ms())
                await self._send(owned.task.take())
            if owned.task.waits and now - owned.began_at_ms >= self._config.idle_after_ms:
                owned.touched = True
                await self._program(owned.task.rest_again)
                await self._send(owned.task.take())
            for topic in owned.spec.part.topics:
                if owned in self._merging and self._merging[owned].waiting(topic):
                    continue
                if topic not in owned.idle and now - owned.rows_at_ms[topic] >= self._config.idle_after_ms:
                    quiet[TopicPartition(topic, owned.spec.partition)] = owned
        if quiet:
            await self._idle(quiet, await self._outside.reader.at_ends(list(quiet)))

    async def _idle(self, quiet: Mapping[TopicPartition, Owned], at_ends: Collection[TopicPartition]) -> None:
        """
        Of partitions that gave nothing for long, those at their ends are idle. Of the others something is on its way:
        this process stood still, or their broker does not answer.
        """
        for at, owned in quiet.items():
            if at not in at_ends:
                owned.rows_at_ms[at.topic] = self._outside.clock.monotonic_ms()
                continue
            owned.idle.add(at.topic)
            owned.touched = True
            await self._program(owned.task.idle, at.topic)
            await self._send(owned.task.take())

    async def _program(self, call: Callable[..., Any], *args: Any) -> Any:
        """
        A step of a task, in which functions of the program may run.

        Raises:
            Blocked: it has not come back within ``max_poll_interval_ms``.
        """
        step = asyncio.ensure_future(self._outside.compute(call, *args))
        done, _ = await asyncio.wait([step], timeout=self._config.max_poll_interval_ms / 1e3)
        if not done:
            self._blocked = True
            raise Blocked(
                f"a function of {self._app.name} has not returned for {self._config.max_poll_interval_ms / 1e3:g} s "
                "(max_poll_interval_ms), so this worker gives its tasks up and ends: bound what the function waits for"
            )
        return step.result()

    @property
    def _writer(self) -> Writer:
        writer = self._here.writer
        assert writer is not None, "tasks were given"
        return writer

    async def _send(self, outputs: list[Output]) -> None:
        for output in outputs:
            if self._waits(output.topic):
                await self._begin()
                await self._writer.send(output)
            else:
                await self._writer.send_at_once(output)
            self.figures.wrote(output)

    def _waits(self, topic: str) -> bool:
        """Whether readers of what goes to this topic must see nothing that is done again."""
        return self._config.processing_guarantee == EXACTLY_ONCE or topic in self._assembled.repartitions

    async def _begin(self) -> None:
        if not self._here.in_transaction:
            self._began_ms = self._outside.clock.monotonic_ms()
            await self._writer.begin()
            self._here.in_transaction = True

    async def _commit(self) -> None:
        """One transaction: what was written, state, positions."""
        began_ms = self._outside.clock.monotonic_ms()
        touched = [owned for owned in self._here.owned.values() if owned.touched]
        for owned in touched:
            await self._program(owned.task.flush)
            await self._send(owned.task.take())
        failpoint("streams.flushed")
        kept = [await self._prepare(owned) for owned in touched]
        if kept:
            await self._begin()
            failpoint("streams.encoded")
            sent = [await self._log(k) if k.rows else None for k in kept]
            failpoint("streams.changelog")
            await self._writer.commit(moved(kept))
            self._here.in_transaction = False
            failpoint("streams.committed")
            self.figures.committed(owned.task for owned in touched)
            for k, of_task in zip(kept, sent, strict=True):
                await self._keep(k, of_task)
            self.queries.notify()
            stores = [store for owned in self._here.owned.values() for store in owned.task.stores]
            await self._outside.compute(self._cache.fit, stores)
            failpoint("streams.kept")
            self._rows = 0
            self.figures.counts["commits"] += 1
            self.figures.commit_time.record(self._outside.clock.monotonic_ms() - began_ms)
            self._trouble_at_ms = float("-inf")
        self._committed_at_ms = self._outside.clock.monotonic_ms()
        await self._trim()

    async def _prepare(self, owned: Owned) -> Kept:
        """What a commit will say of a task."""
        basis = {**owned.progress.basis, **owned.spec.basis}
        progress = Progress(dict(owned.positions), owned.task.watermarks(), basis)
        if owned.store is None:
            return Kept(owned, progress, [])
        rows = changelog.rows(await self._program(owned.task.changes), progress)
        changelog.check_sizes(rows)
        return Kept(owned, progress, rows)

    async def _log(self, kept: Kept) -> Sent:
        """Its rows are on their way to the changelog."""
        output = as_output(kept.owned, kept.rows)
        sent = await self._writer.send(output)
        self.figures.wrote(output)
        return sent

    async def _keep(self, kept: Kept, sent: Sent | None) -> None:
        """The commit stands: the cold tier follows."""
        owned = kept.owned
        owned.progress = kept.progress
        if sent is not None:
            assert owned.store is not None
            checkpoint = Checkpoint(owned.spec.log_id, sent.end(), self._outside.clock.now_ms())
            await self._outside.compute(owned.store.write, kept.rows, checkpoint)
        owned.task.settle()
        owned.touched = False

    async def _tidy(self) -> Mapping[tuple[str, int], Checkpoint]:
        """
        Tasks that moved away have left state, and some of it is too old to be used when they come back. What is left of
        it, by sub-topology and partition.
        """
        self._tidied_at_ms = self._outside.clock.monotonic_ms()
        oldest_ms = self._outside.clock.now_ms() - self._config.trusted_ms
        try:
            left: Mapping[tuple[str, int], Checkpoint] = await self._outside.compute(
                self._outside.stores.tidy, oldest_ms
            )
        except HeadraceError as error:
            _log.warning("old state of %s was not deleted, which costs space alone: %s", self._app.name, error)
            return {}
        return left

    async def _trim(self) -> None:
        repartitions = self._assembled.repartitions
        now = self._outside.clock.monotonic_ms()
        if now - self._trimmed_at_ms < self._config.trim_interval_ms or not repartitions:
            return
        self._trimmed_at_ms = now
        positions = {
            tp: owned.progress.positions[tp.topic]
            for tp, owned in self._of.items()
            if tp.topic in repartitions and tp.topic in owned.progress.positions
        }
        if not positions:
            return
        try:
            await self._outside.topics.trim(positions)
        except HeadraceError as error:
            _log.warning(
                "repartition topics of %s were not trimmed, which costs space alone: %s", self._app.name, error
            )

    # --- failures ---------------------------------------------------------------------------------------------------

    def _judge(self, error: HeadraceError) -> None:
        """
        Raises:
            HeadraceError: it cannot go on, or has not got on for ``default_api_timeout_ms``.
        """
        now = self._outside.clock.monotonic_ms()
        if now - self._trouble_at_ms > _CALM_MS:
            self._trouble_since_ms = now
        self._trouble_at_ms = now
        lasting = now - self._trouble_since_ms >= self._config.default_api_timeout_ms
        fatal = isinstance(error, (Rejected, Internal, FencedInstanceId)) and not isinstance(error, OffsetOutOfRange)
        if isinstance(refused := error.__cause__, (InvalidRecord, RecordTooLarge)):
            raise refused  # what a broker does not take, it does not take when the same is done again
        if lasting or fatal or (error is self._final and not _puts_out(error)):
            raise error

    async def _recover(self, error: HeadraceError) -> None:
        """
        After a failure between two commits: back to the last one; or, put out of the group, back into it.

        Raises:
            HeadraceError: the failure itself, if nothing helps; or another.
        """
        await self._outside.clock.sleep_ms(PAUSE_MS)
        out = self._seat is None or _puts_out(error)
        if isinstance(error, OffsetOutOfRange):
            out = await self._is_out()
            if not out:
                self._final = error
                raise error
        if out:
            _log.warning("%s joins anew: %s", self._app.name, error)
            await self._get_up()
            await self._join()
        else:
            _log.warning("%s goes back to its last commit: %s%s", self._app.name, error, self._too_long())
            await self._rewind()

    def _too_long(self) -> str:
        """What else is to be said of a failure, if the transaction was open for too long."""
        open_ms, timeout_ms = self._outside.clock.monotonic_ms() - self._began_ms, self._config.transaction_timeout_ms
        if not self._here.in_transaction or open_ms < timeout_ms:
            return ""
        return (
            f" (its transaction was open for {open_ms / 1e3:.0f} s; transaction_timeout_ms is {timeout_ms:,}. It does "
            "less in one from now on; if this comes again, raise that setting, or start more workers)"
        )

    async def _rewind(self) -> None:
        seat = self._here
        self.figures.counts["rewinds"] += 1
        if seat.in_transaction:
            await self._writer.abort()
            seat.in_transaction = False
            failpoint("streams.aborted")
        for owned in seat.owned.values():
            await self._outside.compute(owned.task.rewind, owned.progress.watermarks)
            owned.positions = dict(owned.progress.positions)
            owned.touched = False
            owned.awake(self._outside.clock.monotonic_ms())
        self._rows = 0
        await self._read(seat)

    async def _is_out(self) -> bool:
        """Records that this worker was to read are gone: has the group moved on without it?"""
        committed = await self._outside.reader.committed(list(self._of))
        of_group = {tp: None if at is None else at.offset for tp, at in committed.items()}
        return any(of_group[tp] != owned.progress.positions.get(tp.topic) for tp, owned in self._of.items())

    async def _get_up(self) -> None:
        """Let go of all tasks; what was not committed is done again by whoever comes next."""
        seat, self._seat, self._of, self._rows = self._seat, None, {}, 0
        self._merging = {}
        self.figures.unseen()
        self.queries.owned = self.queries.followed = self._snapshotting.owned = {}
        if seat is None:
            return
        # What a function that does not return holds up, its stores among it, ends with the process.
        await seat.get_up(at_once=self._blocked)

    async def close(self) -> None:
        """Let go of everything; what was not committed is done again by whoever comes next."""
        await self._get_up()
        for one in (self._taking_snapshots, self._following):
            if one is not None:
                one.cancel()
                with suppress(asyncio.CancelledError, HeadraceError):
                    await one
        await self._outside.reader.close()
        await self._outside.changelogs.close()
        await self._assembling.globals.close()


def _puts_out(error: HeadraceError) -> bool:
    """Whether it says that another has this worker's place."""
    return error.kind is Kind.FENCED and not isinstance(error, FencedInstanceId)
