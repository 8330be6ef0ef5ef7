"""
What readers and writers need of a cluster, and who does it: ``adapters``. Tests have their own.

``Logs``, ``Onlookers`` and ``TaskKeys`` are used on the driver, ``Rows`` in the tasks. Of queries that write, ``Sink``
is used in the tasks, with a ``RecordWriter``, and on the driver to commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import Selection
from headrace_spark.core.offsets import OffsetRange, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace_common.core.secret import Secret
    from headrace_spark.core.task_keys import Scope
    from headrace_spark.core.units import CommitUnit, Owned


class Logs(Protocol):
    """What a cluster's logs hold. For one caller at a time; all calls block, for ``default_api_timeout_ms`` at most."""

    def snapshot(
        self,
        selection: Selection,
        *,
        newer_than: Mapping[TopicPartition, int] | None = None,
        wait_ms: float = 0,
        after_ms: float = 0,
        must_exist: bool = False,
    ) -> Snapshot:
        """
        Every partition that is selected, with its log's start and end: complete, or an error.

        Args:
            newer_than: ends that are known: answer as soon as one partition is beyond, or is not among them…
            wait_ms: …or after this time.
            after_ms: wait so long before asking at all.
            must_exist: what the selection names has to be there.

        Raises:
            UnknownTopicOrPartition: it is not.
            HeadraceError: a leader could not be asked in time.
        """
        ...

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """By partition the first record at or after a time, in ms since the epoch; None: there is none."""
        ...

    def still_there(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> tuple[OffsetRange, ...]:
        """Those whose topic is there, and is the one of this id where one is given."""
        ...

    def record_bytes(self, snapshot: Snapshot) -> Mapping[TopicPartition, int]:
        """
        About how large a record is, as it is stored, where that can be found out quickly. Never fails; what was found
        out is used for a minute.
        """
        ...


class Onlookers(Protocol):
    """Those who want to see how far a query is: it is shown as a consumer group. Nothing else depends on it."""

    def show(self, group: str, positions: Mapping[TopicPartition, int], *, last: bool = False) -> None:
        """
        The query has read what lies before these offsets. Never fails, and blocks for three seconds at most. What comes
        too often is left out, unless it is the ``last`` that is to be seen.
        """
        ...


class TaskKeys(Protocol):
    """What a query's tasks show, where it would be the driver's credential else. For one caller at a time."""

    def key(self, scope: Scope | None) -> Secret:
        """
        A key for no more than ``scope``, which lasts for the tasks that are planned now. What the driver shows, where
        it may make no keys, the cluster knows none, or ``scope`` is None; that is logged once.

        Raises:
            HeadraceError: the cluster could not be asked in time.
        """
        ...

    def close(self) -> None:
        """The query has ended: delete its keys. Never fails, and blocks for three seconds at most."""
        ...


class Rows(Protocol):
    """The records of some ranges, each once, in the order of its partition. For one thread."""

    def __iter__(self) -> Iterator[pa.Table]:
        """
        Tables with the columns of ``Consumer.poll_table``, those that were asked for, until every range is read.

        Raises:
            PositionOutOfRange: offsets of a range are not in its log; says which partition, and where its log starts.
            UnknownTopicOrPartition: a topic is gone, or is another one than was to be read.
            HeadraceError: it could not be read in time.
        """
        ...

    def remaining(self) -> list[tuple[str, int, int, int]]:
        """What was not handed out yet: topic, partition, start and end each."""
        ...

    def close(self) -> None:
        """End reading. Idempotent."""
        ...


class RecordWriter(Protocol):
    """Writes the rows of one attempt of one task. One thread at a time."""

    def write(self, topic: str, table: pa.Table) -> None:
        """
        Accept rows, with the columns that ``Producer.send_table`` takes; waits while the buffer is full.

        Raises:
            HeadraceError: the rows are wrong, or earlier ones could not be delivered.
        """
        ...

    def flush(self) -> None:
        """
        Wait until all is acknowledged.

        Raises:
            HeadraceError: something is not; the rest may be.
        """
        ...

    def prepare(self) -> str:
        """
        Deliver all, and make the transaction durable without deciding it. Returns its token.

        Raises:
            HeadraceError: it cannot be committed any more.
        """
        ...

    def abort(self) -> None:
        """Give up what was written, and close; waits a few seconds at most, failures change nothing. Idempotent."""
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...


class Sink(Protocol):
    """Where rows are written, and where what was written becomes visible as one."""

    def fresh(self) -> bytes:
        """16 random bytes."""
        ...

    def claim(self, owner: str, claim: int) -> Owned:
        """
        Claim an owner of units under a number: the highest holds.

        Raises:
            FencedOwner: a higher claim was made.
            HeadraceError: it is not known whether it was claimed; the same claim may be made again.
        """
        ...

    def open(self, transactional_id: str | None, owner_epoch: int | None) -> RecordWriter:
        """
        A writer, with a transaction begun if there is an id; without one what it writes is visible at once.

        Raises:
            HeadraceError: it cannot be begun.
        """
        ...

    def commit(self, unit: CommitUnit) -> bool:
        """
        Commit a unit. Returns whether it was committed now, and not before.

        Raises:
            TransactionAbortable: one of its transactions is gone; nothing was committed.
            FencedOwner: the owner has a higher epoch, or committed a later unit.
            HeadraceError: it is not known whether it was committed; the same unit may be committed again.
        """
        ...

    def sweep(self, owner: str, claim: int) -> None:
        """Claim an owner, so that what is open or prepared of it is aborted; failures change nothing."""
        ...
