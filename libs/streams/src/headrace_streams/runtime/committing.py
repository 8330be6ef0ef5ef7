"""
A membership's commits: what its tasks write, their state and their positions, in one transaction. What fails between
two of them is done again from the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from headrace.records import TopicPartition
from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.failpoints import failpoint
from headrace_streams.config import EXACTLY_ONCE, StreamsConfig
from headrace_streams.core.outputs import Output
from headrace_streams.core.state import changelog
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.state.changelog import Progress
from headrace_streams.ports import Checkpoint, Sent, Writer
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.calling import Calling
from headrace_streams.runtime.figures import Figures
from headrace_streams.runtime.owned import Kept, Outside, Owned, as_output, moved
from headrace_streams.runtime.seat import Seat
from headrace_streams.runtime.taking import Differs

_log = logging.getLogger(__name__)
COMMITS_IN_TIMEOUT: Final = 4
"""A transaction that has been open for a fourth of ``transaction_timeout_ms`` is committed."""


class Committing:
    """What was done since the last commit, and the transaction that it is in."""

    def __init__(
        self,
        config: StreamsConfig,
        outside: Outside,
        assembled: Assembled,
        seat: Seat,
        call: Calling,
        cache: StateCache,
        figures: Figures,
        on_commit: Callable[[], None],
    ) -> None:
        """
        Args:
            on_commit: called as soon as a commit stands.
        """
        self._config = config
        self._outside = outside
        self._assembled = assembled
        self._seat = seat
        self._call = call
        self._cache = cache
        self._figures = figures
        self._on_commit = on_commit
        self.rows = 0
        """That were fed since the last commit."""
        self.at_ms = self._trimmed_at_ms = outside.clock.monotonic_ms()
        """Of the last commit, by the monotonic clock."""
        self._in_transaction = False
        self._hopped = False
        """Whether it has rows for repartition topics."""
        self._began_ms = 0.0

    # --- what is written --------------------------------------------------------------------------------------------

    async def send(self, outputs: list[Output]) -> None:
        """What tasks write, within the transaction or at once, as was asked for."""
        for output in outputs:
            if self.waits(output.topic):
                await self._begin()
                self._hopped |= output.topic in self._assembled.repartitions
                await self._writer.send(output)
            else:
                await self._writer.send_at_once(output)
            self._figures.wrote(output)

    def waits(self, topic: str) -> bool:
        """Whether readers of what goes to this topic must see nothing that is done again."""
        return self._config.processing_guarantee == EXACTLY_ONCE or topic in self._assembled.repartitions

    @property
    def _writer(self) -> Writer:
        writer = self._seat.writer
        assert writer is not None, "tasks were given"
        return writer

    async def _begin(self) -> None:
        if not self._in_transaction:
            self._began_ms = self._outside.clock.monotonic_ms()
            await self._writer.begin()
            self._in_transaction, self._hopped = True, False

    # --- when it is time --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction."""
        return self._in_transaction

    @property
    def is_under_way(self) -> bool:
        """Whether something was done since the last commit."""
        return self._in_transaction or self.rows > 0

    def is_full(self) -> bool:
        """Whether enough has been done for a commit, whatever the time."""
        if self.rows >= self._config.commit_rows:
            return True
        touched = [owned.task for owned in self._seat.owned.values() if owned.touched]
        return sum(task.dirty_bytes() for task in touched) >= self._config.commit_state_bytes

    def is_open_for_long(self) -> bool:
        """Whether the coordinator would soon abort the transaction, and all would be done again, for ever."""
        return self._in_transaction and self._open_ms >= self._config.transaction_timeout_ms / COMMITS_IN_TIMEOUT

    @property
    def _open_ms(self) -> float:
        return self._outside.clock.monotonic_ms() - self._began_ms

    async def commit_in_time(self) -> None:
        """If the transaction has been open for long."""
        if self.is_open_for_long():
            await self.commit()

    def too_long(self) -> str:
        """What else is to be said of a failure, if the transaction was open for too long."""
        if not self._in_transaction or self._open_ms < self._config.transaction_timeout_ms:
            return ""
        return (
            f" (its transaction was open for {self._open_ms / 1e3:.0f} s; transaction_timeout_ms is "
            f"{self._config.transaction_timeout_ms:,}. It does less in one for a while; if this comes again and again, "
            "raise that setting, or start more workers)"
        )

    # --- the commit -------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """One transaction: what was written, state, positions."""
        began_ms = self._outside.clock.monotonic_ms()
        touched = [owned for owned in self._seat.owned.values() if owned.touched]
        for owned in touched:
            await self._call(owned.task.flush)
            await self.send(owned.task.take())
        failpoint("streams.flushed")
        kept = [await self._prepare(owned) for owned in touched]
        if kept:
            await self._begin()
            failpoint("streams.encoded")
            sent = [await self._log(k) if k.rows else None for k in kept]
            failpoint("streams.changelog")
            if self._hopped:
                # The group takes positions of members alone. Rows that came behind them could come after it was put
                # out, when others have looked which rows there are (Taking.ends).
                await self._writer.flush()
            await self._writer.commit(moved(kept))
            self._in_transaction = False
            failpoint("streams.committed")
            self._figures.committed(owned.task for owned in touched)
            for k, of_task in zip(kept, sent, strict=True):
                await self._keep(k, of_task)
            self._on_commit()
            stores = [store for owned in self._seat.owned.values() for store in owned.task.stores]
            await self._outside.compute(self._cache.fit, stores)
            failpoint("streams.kept")
            self.rows = 0
            self._figures.counts["commits"] += 1
            self._figures.commit_time.record(self._outside.clock.monotonic_ms() - began_ms)
        self.at_ms = self._outside.clock.monotonic_ms()
        await self._trim()

    async def _prepare(self, owned: Owned) -> Kept:
        """What a commit will say of a task."""
        basis = {**owned.progress.basis, **owned.spec.basis}
        progress = Progress(dict(owned.positions), owned.task.watermarks(), basis)
        if owned.store is None:
            return Kept(owned, progress, [])
        rows = changelog.rows(await self._call(owned.task.changes), progress)
        changelog.check_sizes(rows, owned.task.key_at)
        return Kept(owned, progress, rows)

    async def _log(self, kept: Kept) -> Sent:
        """Its rows are on their way to the changelog."""
        output = as_output(kept.owned, kept.rows)
        sent = await self._writer.send(output)
        self._figures.wrote(output)
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

    async def _trim(self) -> None:
        repartitions = self._assembled.repartitions
        now = self._outside.clock.monotonic_ms()
        if now - self._trimmed_at_ms < self._config.trim_interval_ms or not repartitions:
            return
        self._trimmed_at_ms = now
        positions = {
            TopicPartition(topic, owned.spec.partition): offset
            for owned in self._seat.owned.values()
            for topic, offset in owned.progress.positions.items()
            if topic in repartitions
        }
        if not positions:
            return
        try:
            await self._outside.topics.trim(positions)
        except HeadraceError as error:
            _log.warning(
                "repartition topics of %s were not trimmed, which costs space alone: %s", self._seat.app, error
            )

    # --- failures ---------------------------------------------------------------------------------------------------

    async def prove(self, error: Differs) -> None:
        """
        State and positions differ. Is it that another worker has both by now?

        Raises:
            UnknownMemberId: it is.
        """
        await self.commit()
        await self._begin()
        await self._writer.commit(error.at)
        self._in_transaction = False

    async def rewind(self) -> None:
        """The transaction is aborted, and tasks are as of the last commit."""
        if self._in_transaction:
            await self._writer.abort()
            self._in_transaction = False
            failpoint("streams.aborted")
        for owned in self._seat.owned.values():
            await self._outside.compute(owned.task.rewind, owned.progress.watermarks)
            owned.positions = dict(owned.progress.positions)
            owned.touched = False
            owned.awake(self._outside.clock.monotonic_ms())
        self.rows = 0
