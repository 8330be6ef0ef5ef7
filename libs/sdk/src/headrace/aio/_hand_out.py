"""
What both consumers do with what was fetched: hand it out, and move positions. Every method may be called by any
thread, one at a time: the event loop in ``aio``, the application's thread in the sync consumer.

The core is guarded by one short lock; whole batches, never records, cross it, and they are decoded outside it.
"""

from __future__ import annotations

import gc
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace._bulk_libraries import load_bulk_libraries, load_table_libraries
from headrace._core.fetch_partition import Fetched, PartitionFetch
from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_positions import FetchPositions
from headrace._core.ranges import Range
from headrace._core.record_runs import Deserializers, RecordRun, run_of
from headrace._core.record_tables import PARTITION_COLUMNS, TABLE_COLUMNS, TableParts
from headrace._core.starts import Start, parse_reset
from headrace._descriptors import needing_descriptors
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import HeadraceError, NoPosition, Rejected
from headrace.records import Committed, PartitionTable, SkippedBatch
from headrace_common.core.batch import DecodedBatch, decode_batch
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.records import Record

TABLE_ROWS_MAX: Final = 200_000
"""Rows of one ``poll_table`` or ``poll_batches`` that names no number."""


class HandOut:
    """The core, its lock, and the batch that is being handed out. ``changed`` is called after the core was changed."""

    def __init__(
        self,
        settings: ConsumerSettings,
        clock: Clock,
        deserializers: Deserializers,
        changed: Callable[[], None],
        *,
        limits: FetchLimits | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.core = FetchPositions(limits or settings.limits, parse_reset(settings.auto_offset_reset))
        self.crash: HeadraceError | None = None
        """Set when a task of the consumer met a bug: every call raises it."""
        self.cold = False
        """Set when what decodes large batches could not be loaded in time: it is loaded before one is handed out."""
        self._settings = settings
        self._clock = clock
        self._deserializers = deserializers
        self._changed = changed
        self.in_transaction = False
        """The positions are a transaction's: if it fails, what is sought meanwhile fails with it."""
        self._run: RecordRun | None = None
        self._begun: tuple[Fetched, DecodedBatch] | None = None
        """A batch of which a table took the first rows, so that it is decoded once."""
        self._marked: dict[TopicPartition, Committed] = {}
        """Where partitions were at the last ``mark``, of those that were handed out since."""

    def take(self, records_max: int) -> list[Record]:
        """
        Up to ``records_max`` records that are here already.

        Raises:
            HeadraceError: what the application has to know before it gets more.
        """
        collecting = gc.isenabled()
        gc.disable()  # all that is made here lives on: to look through it again and again took longer than to make it
        try:
            return self._take(records_max)
        finally:
            if collecting:
                gc.enable()

    def _take(self, records_max: int) -> list[Record]:
        self.raise_failures()
        taken: list[Record] = []
        while len(taken) < records_max:
            run = self._run
            if run is None or run.finished:
                if taken and run is not None and run.failure is not None:
                    break
                run = self._next_run(taken)
                if run is None:
                    break
            some = run.take(records_max - len(taken))
            if taken:
                taken.extend(some)
            else:
                taken = some
        self._changed()
        return taken

    def next_run(self) -> RecordRun | None:
        """The next run to iterate over, as far as one is here; it counts as handed out as it is walked."""
        self.raise_failures()
        run = self._run
        if run is None or run.finished:
            run = self._next_run(())
            self._changed()
        return run

    def _next_run(self, taken: Collection[object]) -> RecordRun | None:
        """End the run that is finished, and decode the next batch. What fails after ``taken`` fails next time."""
        failure = self._run.failure if self._run is not None else None
        with self.lock:
            self.close_run()
            if failure is not None:
                raise failure
            partition = self._open_batch()
        if partition is None:
            return None
        assert partition.open is not None, "an open batch is there until it was handed out"
        try:
            self._run = run_of(partition, self._decode(partition.open), self._deserializers)
        except HeadraceError as failed:
            error = self._undo(partition, failed)
            if not taken:
                raise error from failed.__cause__
            return None
        return self._run

    def _open_batch(self) -> PartitionFetch | None:
        """The partition whose next batch is handed out now, if one may be. Under the lock."""
        if self.core.state.resets:
            return None  # the application hears of it first, with its next call
        partition = self.core.next_batch()
        if partition is not None and partition.tp not in self._marked:
            self._marked[partition.tp] = self._position_of(partition)
        return partition

    def take_table(self, rows_max: int | None, names: tuple[str, ...] = TABLE_COLUMNS) -> pa.Table:
        """What is here already, as one table of the columns that are named; it may have no rows."""
        parts = TableParts(names)
        self._gather(rows_max, lambda _: parts)
        return parts.table()

    def take_batches(self, rows_max: int | None, bytes_max: int | None = None) -> list[PartitionTable]:
        """What is here already, by partition, and where reading is in those that have moved without records."""
        parts = defaultdict[TopicPartition, TableParts](partial(TableParts, PARTITION_COLUMNS))
        handed_out = self._gather(rows_max, parts.__getitem__, bytes_max)
        with self.lock:
            places = self.core.state.take_places(handed_out)
        return [
            PartitionTable(
                *place.tp,
                parts[place.tp].table(),
                place.offset,
                place.leader_epoch,
                place.ends.last_stable if self._settings.read_committed else place.ends.high_watermark,
                place.ends.high_watermark,
            )
            for place in places
        ]

    def _gather(
        self, rows_max: int | None, parts_of: Callable[[TopicPartition], TableParts], bytes_max: int | None = None
    ) -> dict[PartitionFetch, tuple[int, int]]:
        """Take what is here into ``parts_of`` its partition; of each its epoch and the position behind its rows."""
        self.raise_failures()
        with needing_descriptors():
            load_table_libraries()  # before anything is taken
        with self.lock:
            self.close_run()
        handed_out: dict[PartitionFetch, tuple[int, int]] = {}
        left = TABLE_ROWS_MAX if rows_max is None else rows_max
        size = 0
        while left > 0 and (bytes_max is None or size < bytes_max):
            with self.lock:
                partition = self._open_batch()
                if partition is None:
                    break
                epoch, position, fetched = partition.epoch, partition.position, partition.open
                assert position is not None, "an open batch means that there is a position"
                assert fetched is not None, "it was just opened"
                if partition in handed_out and handed_out[partition][0] != epoch:
                    self.core.give_back(partition, epoch, position)  # it goes on elsewhere: not in one table
                    break
            parts = parts_of(partition.tp)
            rows = parts.rows
            try:
                batch = self._decode(fetched)
                position = parts.add(partition.tp, batch, position, left, partition.stop)
            except HeadraceError as failed:
                error = self._undo(partition, failed)
                if not handed_out:
                    raise error from failed.__cause__
                break
            self._begun = (fetched, batch) if position < fetched.header.next_offset else None
            if bytes_max is not None and parts.rows > rows:
                size += parts.last_bytes()
            left -= parts.rows - rows
            handed_out[partition] = (epoch, position)
            with self.lock:
                self.core.handed_out(partition, epoch, position)
        self._changed()
        return handed_out

    def stopped(self, tp: TopicPartition) -> bool:
        """Whether the range that ends at its ``stop`` was handed out; nothing is after closing."""
        partition = self.core.partitions.get(tp)
        return partition is not None and partition.stopped and partition.open is None

    def go_on(self, ranges: Mapping[TopicPartition, Range | None]) -> None:
        """Read the next ranges of partitions that have ``stopped``; None: no more of it."""
        if not ranges:
            return
        with self.lock:
            for tp, following in ranges.items():
                if tp not in self.core.partitions:
                    continue  # closed by another thread meanwhile
                if following is None:
                    self.core.remove(tp)
                else:
                    self.core.go_on(tp, *following)
        self._changed()

    def _decode(self, fetched: Fetched) -> DecodedBatch:
        if self._begun is not None and self._begun[0] is fetched:
            return self._begun[1]
        return decode_batch(fetched.batch, verify_crc=self._settings.check_crcs)

    def _undo(self, partition: PartitionFetch, error: HeadraceError) -> HeadraceError:
        """Back to before the open batch; what the application is to get."""
        with self.lock:
            if partition.position is not None:
                error = self.core.meet_damage(partition, partition.epoch, partition.position, error)
        self._changed()
        return error

    def skip_batch(self, tp: TopicPartition | None) -> SkippedBatch:
        """
        Move the position of ``tp``, or of the one partition where it is so, past the batch that cannot be read.

        Raises:
            Rejected: no such batch was met there, or in several partitions and none is named.
        """
        with self.lock:
            if tp is not None:
                self._check_assigned((tp,))
            self.close_run()
            found = [p for p in self.core.partitions.values() if p.stuck_at is not None and tp in (None, p.tp)]
            if len(found) > 1:
                names = ", ".join(str(p.tp) for p in found[:5])
                raise Rejected(f"batches of {names} cannot be read: say which to skip, skip_batch(({names}))")
            if not found:
                raise Rejected(
                    f"reading of {tp or 'no partition'} has stopped at a batch that cannot be read; call it after a"
                    " poll has raised CorruptBatch or UnsupportedVersion"
                )
            skipped = self.core.skip(found[0].tp)
        self._changed()
        return SkippedBatch(found[0].tp, range(skipped.first, skipped.next_offset), str(skipped.error))

    def close_run(self) -> None:
        """The position becomes where the run is; what is left of it is handed out later. Under the lock."""
        run, self._run = self._run, None
        if run is not None:
            self.core.handed_out(run.partition, run.epoch, run.position)
            run.cut()

    # --- positions for commits ----------------------------------------------------------------------------------------

    def mark(self) -> None:
        """The application asks for more: what was handed out before, it has handled."""
        self._marked.clear()
        run = self._run
        if run is not None and run.epoch == run.partition.epoch and not run.finished:
            self._marked[run.partition.tp] = self._position_of(run.partition)

    def positions(self, *, handled: bool = False) -> dict[TopicPartition, Committed]:
        """Where each partition is, as far as that is known; with ``handled`` where it was at the last ``mark``."""
        with self.lock:
            known = {p.tp: self._position_of(p) for p in self.core.partitions.values() if p.position is not None}
        if handled:
            known.update({tp: at for tp, at in self._marked.items() if tp in known and at.offset < known[tp].offset})
        return known

    def to_commit(self, known: Mapping[TopicPartition, int]) -> dict[TopicPartition, Committed]:
        """Where partitions are that have moved from what is ``known`` to be committed of them."""
        moved: dict[TopicPartition, Committed] = {}
        with self.lock:
            walked = None if self._run is None else self._run.partition
            for partition in self.core.partitions.values():
                if partition.position is None:
                    continue
                last = known.get(partition.tp, partition.base)
                if partition.position == last and partition is not walked:
                    continue  # nearly all, where there are many
                at = self._position_of(partition)
                if at.offset != last:
                    moved[partition.tp] = at
        return moved

    def committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """The group has committed these: a transaction that fails later goes back to them."""
        with self.lock:
            for tp, at in offsets.items():
                self.core.committed(tp, at.offset)

    def rewind(self) -> None:
        """
        Go back to what is committed in all partitions of which something was handed out since; what is buffered or on
        the wire of them is dropped. ``Reading`` looks the positions up.
        """
        with self.lock:
            self.close_run()
            self._marked.clear()
            for tp in self.core.partitions:
                self.core.rewind(tp)
        self._changed()

    def _position_of(self, partition: PartitionFetch) -> Committed:
        run, position = self._run, partition.position
        assert position is not None, "asked only where there is a position"
        if (
            run is not None
            and run.partition is partition
            and run.epoch == partition.epoch
            and partition.open is not None
        ):
            if run.finished and run.failure is None:
                header = partition.after_open
                return Committed(header.next_offset, header.leader_epoch)
            within = run.position
            if within > position:
                return Committed(within, partition.open.header.leader_epoch)
        return Committed(position, partition.position_epoch)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more; what was fetched of them is never handed out."""
        with self.lock:
            self.close_run()
            for tp in partitions:
                if tp in self.core.partitions:
                    self.core.remove(tp)
                self._marked.pop(tp, None)
        self._changed()

    def raise_failures(self) -> None:
        """Raise what the application has to know, if anything; before that, tell it what it will not read."""
        if self.crash is not None:
            raise self.crash
        core = self.core
        while core.state.resets:
            event, told = core.state.resets.popleft(), self._settings.on_position_reset
            if told is not None:
                told(event)
        if core.has_failures:
            with self.lock:
                if self._run is not None and self._run.finished and self._run.failure is None:
                    self.close_run()
                failure = core.take_failure(self._clock.monotonic_ms())
            self._changed()
            if failure is not None:
                raise failure
        lost = core.without_position()
        if lost:
            names = ", ".join(map(str, lost[:5]))
            raise NoPosition(f"{names}: no position, and auto_offset_reset is 'none'; seek to where reading starts")
        if self.cold:
            with needing_descriptors():
                load_bulk_libraries()
            self.cold = False

    def assignment(self) -> list[TopicPartition]:
        """What is read now."""
        with self.lock:
            return list(self.core.partitions)

    def seek(self, targets: Mapping[TopicPartition, int | Start]) -> None:
        with self.lock:
            self._check_assigned(targets)
            self.close_run()
            for tp, target in targets.items():
                self.core.seek(tp, target, rebase=not self.in_transaction)
        self._changed()

    def go_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on elsewhere, as if what is between had never been handed out; a transaction's beginning stays."""
        if not offsets:
            return
        with self.lock:
            self._check_assigned(offsets)
            self.close_run()
            for tp, offset in offsets.items():
                self.core.seek(tp, offset, rebase=False)
        self._changed()

    def pause(self, partitions: Collection[TopicPartition], *, paused: bool) -> None:
        """Hand nothing of these out, or do so again."""
        with self.lock:
            self._check_assigned(partitions)
            self.close_run()
            for tp in partitions:
                (self.core.pause if paused else self.core.resume)(tp)
        self._changed()

    def list_paused(self) -> list[TopicPartition]:
        with self.lock:
            return [p.tp for p in self.core.partitions.values() if p.paused]

    def position_now(self, tp: TopicPartition) -> int | None:
        """The next record that will be handed out; None while it is looked up."""
        with self.lock:
            self._check_assigned((tp,))
            partition = self.core.partitions[tp]
            return None if partition.position is None else self._position_of(partition).offset

    def _check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp not in self.core.partitions:
                raise Rejected(f"{tp} is not read by this consumer; assign it first, or subscribe to its topic")
