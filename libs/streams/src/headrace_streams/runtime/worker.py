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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Final

from headrace_common.core.errors import (
    HeadraceError,
    InconsistentGroupProtocol,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from headrace_streams.config import StreamsConfig
from headrace_streams.core.state.cache import StateCache
from headrace_streams.dsl.app import App
from headrace_streams.patience import PAUSE_MS, Patience
from headrace_streams.ports import Checkpoint, Membership
from headrace_streams.runtime.assembling import Assembled, Assembling
from headrace_streams.runtime.calling import Calling
from headrace_streams.runtime.committing import COMMITS_IN_TIMEOUT, Committing
from headrace_streams.runtime.feeding import Feeding
from headrace_streams.runtime.figures import Figures
from headrace_streams.runtime.following import Changelogs
from headrace_streams.runtime.missing import Missing
from headrace_streams.runtime.owned import Outside
from headrace_streams.runtime.pacing import Pace
from headrace_streams.runtime.queries import Queries
from headrace_streams.runtime.restoring import Restoring
from headrace_streams.runtime.seat import Seat
from headrace_streams.runtime.snapshotting import Snapshotting
from headrace_streams.runtime.stopping import before
from headrace_streams.runtime.taking import Differs
from headrace_streams.runtime.trouble import Trouble, puts_out

_log = logging.getLogger(__name__)
_POLL_MS: Final = 100
_HEAR_MS: Final = 20.0
"""How often the group is asked while there is work."""
_TAKING_MS: Final = 10
_LAGS_MS: Final = 1_000.0
_SETTLED_MS: Final = 1_000.0
_TIDY_MS: Final = 3_600_000.0


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
        self._call = Calling(app.name, outside.compute, config.max_poll_interval_ms)
        timeout_ms = config.transaction_timeout_ms
        self._pace = Pace(timeout_ms, timeout_ms / (2 * COMMITS_IN_TIMEOUT), config.max_batch_rows)
        self._committing: Committing
        self._feeding: Feeding
        self._trouble = Trouble(outside.clock, config.default_api_timeout_ms)
        self._stop = asyncio.Event()
        """Set: it is to end."""
        self._heard_at_ms = self._told_lags_at_ms = float("-inf")
        self._looked_at_ms = self._tidied_at_ms = 0.0
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
            NotAllowed: the plan does not fit the topics, the state or the rows that are there, or another program runs
                under the app's name.
            UnknownTopicOrPartition: a topic does not exist.
            NotFound: positions are gone, and there is state of what would be read again.
        """
        await self._assemble()
        await self._assembling.check_positions(self._assembled, self._patience)
        await self._assembling.check_state(self._assembled, self._patience)
        await self._assembling.check_rows(self._assembled, self._patience)

    async def start(self) -> None:
        """Join those that share the app's tasks."""
        self._following = asyncio.create_task(self._changelogs.run(), name="changelogs")
        self._taking_snapshots = asyncio.create_task(self._snapshotting.run(), name="snapshots")
        await self._join()
        self._looked_at_ms = self._outside.clock.monotonic_ms()

    async def _join(self) -> None:
        while True:
            declaration = self._assembled.declaration(self._config)
            self._lags = await self._lags_of_disk()
            membership = await self._outside.join(declaration, self._lags)
            self._sit(membership)
            self.figures.counts["joins"] += 1
            self._heard_at_ms = self._told_lags_at_ms = float("-inf")
            if await self._is_same():
                _log.info("%s has joined its group, and waits for tasks", self._app.name)
                return
            _log.warning("%s joins anew: its topics have changed meanwhile", self._app.name)
            await self._get_up()

    def _sit(self, membership: Membership) -> None:
        """What a membership has: its tasks, what they read, and its commits."""
        config, outside, figures = self._config, self._outside, self.figures
        look = partial(self._assembling.check_rows, self._assembled, self._patience)
        seat = Seat(self._app.name, config, outside, self._changelogs, self._assembled, membership, look)
        committing = Committing(
            config, outside, self._assembled, seat, self._call, self._cache, figures, self._on_commit
        )
        self._seat, self._committing = seat, committing
        self._feeding = Feeding(config, outside, seat, self._call, committing, self._pace, figures)
        figures.owned = self.queries.owned = self._snapshotting.owned = seat.owned
        self.queries.followed = seat.followed

    def _on_commit(self) -> None:
        self.queries.notify()
        self._trouble.end()

    async def _is_same(self) -> bool:
        """
        Now that this is a member no reset begins, and no program with other columns runs. Has a reset deleted the
        topics that it had assembled before?

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
            self._trouble.final = error if isinstance(error, HeadraceError) else None
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
            if isinstance(error, Differs):
                await self._committing.prove(error)
            self._trouble.final = error
            raise
        if ready:
            for owned in seat.owned.values():
                owned.task.tell(self._outside.clock.now_ms())
            await self._feeding.begin()

    async def _give_up(self, seat: Seat) -> None:
        """What was revoked is committed, and somebody else's."""
        await self._committing.commit()
        for item in seat.revoked:
            self._lags[item] = 0
            await seat.leave(item)
        seat.membership.give_up(*seat.revoked)
        seat.revoked.clear()
        await self._read_on()

    async def _read_on(self) -> None:
        """Read where each task is, if anything is read yet."""
        if self._here.checked:
            await self._feeding.begin()

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
        self._stop = stop
        while not stop.is_set():
            await self._persist(self.step)
        await self._persist(self._commit)

    async def _commit(self) -> None:
        await self._committing.commit()

    async def _persist(self, do: Callable[[], Awaitable[None]]) -> None:
        """
        Do something, again after each failure that one gets over. A worker that is to end and has lost its place has
        nothing more to do.

        Raises:
            HeadraceError: it cannot go on, or has not got on for ``default_api_timeout_ms``.
        """
        failure: HeadraceError | None = None
        while True:
            try:
                if failure is not None:
                    await self._recover(failure)
                    if self._seat is None:
                        return
                await do()
                return
            except HeadraceError as error:
                self._trouble.judge(error)
                failure = error

    async def step(self) -> None:
        """Hear the group, read once, feed what came, commit if it is time."""
        await self._hear()
        await self._assembling.globals.poll()
        if not self._here.owned:
            return
        committing, clock = self._committing, self._outside.clock
        due_ms = committing.at_ms + self._config.commit_interval_ms
        left_ms = max(0, ceil(due_ms - clock.monotonic_ms()))
        await self._feeding.read(min(_POLL_MS, left_ms) if committing.is_under_way else _POLL_MS)
        if committing.is_full() or committing.is_open_for_long() or clock.monotonic_ms() >= due_ms:
            await committing.commit()
            await self._look_at_topics()
            if clock.monotonic_ms() - self._tidied_at_ms >= _TIDY_MS:
                await self._tidy()

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
            self._trouble.final = error
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

    # --- failures ---------------------------------------------------------------------------------------------------

    async def _recover(self, error: HeadraceError) -> None:
        """
        After a failure between two commits: back to the last one; or, put out of the group, back into it.

        Raises:
            HeadraceError: the failure itself, if nothing helps; or another.
        """
        await self._outside.clock.sleep_ms(PAUSE_MS)
        if isinstance(error, UnknownTopicOrPartition):
            await self._look_for_internal()
        if isinstance(error, InconsistentGroupProtocol):
            await self._give_way(error)
            return
        too_long = self._look_at_time()
        out = self._seat is None or puts_out(error) or self._trouble.is_fenced
        if isinstance(error, OffsetOutOfRange):
            out = self._seat is not None and await self._feeding.is_behind_group()
            if not out:
                self._trouble.final = error
                raise error
        if out and self._stop.is_set():
            _log.warning("%s ends without its last commit, and others do that again: %s", self._app.name, error)
            await self._get_up()
        elif out:
            read_on = "others have its tasks by now, and read on where it stood; nothing is lost"
            said = read_on if isinstance(error, OffsetOutOfRange) else error
            _log.warning("%s joins anew: %s%s", self._app.name, said, too_long)
            await self._get_up()
            await self._join()
        else:
            _log.warning("%s goes back to its last commit: %s%s", self._app.name, error, too_long)
            self.figures.counts["rewinds"] += 1
            await self._committing.rewind()
            await self._read_on()

    def _look_at_time(self) -> str:
        """Was the transaction open for too long? Then less is done in one for a while; what is said of it."""
        said = "" if self._seat is None else self._committing.too_long()
        if said:
            self._pace.was_too_long(self._outside.clock.monotonic_ms())
        return said

    async def _give_way(self, error: InconsistentGroupProtocol) -> None:
        """
        Another version was a member first. Wait until its workers have ended, as before the first join, or until this
        one is to end.

        Raises:
            NotAllowed: they do not end.
        """
        _log.warning("%s gives way: %s", self._app.name, error)
        await self._get_up()
        if await before(self._stop, self._assemble()):
            await self._join()

    async def _assemble(self) -> None:
        self._assembled = self.queries.assembled = await self._assembling.assemble(self._patience)

    async def _look_for_internal(self) -> None:
        """
        Raises:
            UnknownTopicOrPartition: a topic that the app has made for itself was deleted; it does not come back.
        """
        internal = self._assembled.internal
        there = await self._outside.topics.find(sorted(internal))
        if gone := sorted(internal - there.keys()):
            name = self._app.name
            self._trouble.final = UnknownTopicOrPartition(
                f"topics that {name} keeps its state and its rows in were deleted: {', '.join(gone)}; stop its "
                f"workers, and have it begin anew: headrace streams reset {name}"
            )
            raise self._trouble.final

    async def _get_up(self) -> None:
        """Let go of all tasks; what was not committed is done again by whoever comes next."""
        seat, self._seat = self._seat, None
        self.figures.unseen()
        self.queries.owned = self.queries.followed = self._snapshotting.owned = {}
        if seat is None:
            return
        # What a function that does not return holds up, its stores among it, ends with the process.
        await seat.get_up(at_once=self._call.blocked)

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
