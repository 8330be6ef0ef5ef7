"""
What a connector is: a class that reads another system (``Source``) or writes one (``Sink``).

Methods may be ``async`` or not. Those that are not run in a thread, always the same one for an instance, one at a time.
Of those that are, a ``read`` of each split and ``committed`` may be going on at once; else it is one at a time too.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, get_args, get_origin, overload

import numpy as np
import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.errors import PartitionTaken, RetriableError, RowsRefused
from headrace_connect.core.events import Event, Notify
from headrace_connect.core.jobs import Job, JobState

Position: TypeAlias = Mapping[str, Any]
"""Where reading goes on: what JSON can hold, at most 4 KiB of it. Only its connector understands it."""

Values: TypeAlias = "pa.Table | pa.ChunkedArray[Any] | pa.Array[Any] | Sequence[Any]"
"""
One value for each record: a table (a record for each row), an array (of structs, texts or bytes), or a list of dicts,
texts or bytes. None is a null value, which deletes its key where a topic is compacted. A table has no nulls.
"""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source that is read apart from the others: a table, a file, a partition."""

    id: str
    """Unique in its connector, and the same at each start: positions are kept under it. 1 to 249 characters."""
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What ``read`` needs to know about it: what JSON can hold."""


@dataclass(frozen=True, slots=True)
class BadItem:
    """Something in the source that could not be read: half a line, a damaged row."""

    raw: bytes
    """As it is in the source; the dead letter's value."""
    reason: str
    """What is wrong with it, and where it is: file and byte offset, table and key."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """
    Records that were read, and where reading goes on behind them. Both are committed together: a chunk is never cut.

    All columns that are given have as many rows as ``rows``.
    """

    rows: Values
    """Values of the records; may be empty, where only the position has moved."""
    position: Position
    """``read(split, after=position)`` goes on exactly behind ``rows``."""
    topic: str | None = None
    """None: the connector's setting ``topic``."""
    keys: Values | None = None
    """Keys of the records; None: no record has one."""
    timestamps_ms: Sequence[int | None] | pa.Array[Any] | None = None
    """Milliseconds since the epoch, UTC; None: when the record is sent."""
    headers: Sequence[Sequence[tuple[str, bytes]]] | pa.Array[Any] | None = None
    """Pairs of each record; or lists of ``{"key": text, "value": bytes}``, as ``Consumer.poll_batches`` gives them."""
    partition: int | None = None
    """Of the topic; None: the key decides."""
    boundary: bool = False
    """Something ends here in the source, say a transaction: ``transaction.boundary=connector`` commits here."""
    bad: Sequence[BadItem] = ()
    """Dead letters where ``errors.tolerance`` is ``all``, committed with the rows; else the task fails."""
    drained: bool = False
    """There is nothing more for now: what was read is committed at once, and ``run --until-idle`` may end."""
    further: Sequence[Chunk] = ()
    """Records of other topics or types that belong to the same position, behind ``rows``. Of these chunks only what is
    said of records counts."""
    key_schema: str | None = None
    """The name of the keys' schema, as Kafka Connect has it; None: it has none."""
    value_schema: str | None = None
    """The same of ``rows``."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where records of a chunk are in their topic. All arrays have an element for each of them, in their order."""

    topic: str
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Which rows of the chunk they were: transforms may have left some out."""
    partitions: np.ndarray[Any, np.dtype[np.int64]]
    offsets: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A chunk whose records are in their topics, and will be seen when their transaction is committed."""

    split: Split
    chunk: Chunk
    places: Sequence[Place]
    """One for each topic; of dead letters and of ``further`` none."""


@dataclass(frozen=True, slots=True)
class Note:
    """A record that goes into its topic as it is, in the transaction of those that it is about."""

    topic: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is."""

    partitions: int
    configs: Mapping[str, str]
    """Only what was set for it."""


class Topics(Protocol):
    """The topics of the cluster that a source writes to. Each call may raise ``HeadraceError``."""

    async def cluster_id(self) -> str:
        """Which cluster it is."""
        ...

    async def describe(self) -> Mapping[str, TopicState]:
        """All that are not internal."""
        ...

    async def create(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> None:
        """Make a topic; one that is there stays as it is. ``partitions``: None: the cluster's default."""
        ...

    async def grow(self, name: str, partitions: int) -> None:
        """Raise the number of partitions."""
        ...

    async def configure(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change settings; None: back to the default."""
        ...

    async def end_offset(self, name: str, partition: int) -> int:
        """Behind the last record that is replicated, whatever becomes of its transaction."""
        ...


class Units(Protocol):
    """
    What others write for a source as one unit, its position among it: rows that a Spark job reads. Each call may raise
    ``HeadraceError``.
    """

    owner: str
    """Of the unit's transactions."""
    offset_topic: str
    """Where the position goes."""

    async def fence(self) -> None:
        """What was begun before and is not committed never will be."""
        ...

    async def position(self, split: Split) -> Position | None:
        """What is committed by now, by whomever."""
        ...


class Jobs(Protocol):
    """
    Runs programs for a source elsewhere: Spark jobs, which read on as many machines as there are. Where nothing can be
    started, a person is told the command.
    """

    async def start(self, job: Job) -> str:
        """
        Have it run; the same again changes nothing. What an earlier task of this connector has left is ended.

        Returns:
            For people: what runs, or the command.

        Raises:
            RetriableError: who would run it does not answer.
            JobFailed: who would run it refuses; says what helps.
            InvalidConfig: the configuration cannot be handed on, or this process is not where it says.
        """
        ...

    async def look(self, job: Job) -> JobState | None:
        """How it is; None: that cannot be known, now or ever."""
        ...

    async def end(self, job: Job) -> None:
        """It is not needed any more: end it if it runs, and remove it. Never fails: what cannot be done is logged."""
        ...


class Guarantee(StrEnum):
    """What a sink makes of a record that it is given twice."""

    POSITIONS = "positions"
    """The target keeps the positions, and changes them in the transaction that writes the rows: exactly once."""
    IDEMPOTENT = "idempotent"
    """Rows have a name and a version that come from the record: a repeat changes nothing."""
    AT_LEAST_ONCE = "at_least_once"
    """It writes it again."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """
    Records of one partition, by ascending offset. Offsets have gaps: markers, compacted records, dead letters.

    All arrays have one element for each record.
    """

    topic: str
    partition: int
    values: pa.Array[Any]
    """What the converter made: structs, texts or bytes. Null: the record deletes its key."""
    keys: pa.Array[Any]
    """The same of keys. Null: the record has none."""
    offsets: pa.Array[Any]
    """int64."""
    timestamps_ms: pa.Array[Any]
    """int64, milliseconds since the epoch, UTC."""
    headers: pa.Array[Any]
    """Lists of ``{"key": text, "value": bytes}``."""
    original_topic: str | None = None
    """The topic that they were read from, where a transform has changed its name; with partition and offset it is
    theirs alone. None: ``topic``."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def source(self) -> TopicPartition:
        """The partition that they were read from: as ``open`` names it."""
        return TopicPartition(self.original_topic or self.topic, self.partition)

    @property
    def table(self) -> pa.Table:
        """The columns of the values; all are null where the value is. Values without fields: one column ``value``."""
        return _columns(self.values, "value")

    @property
    def key_table(self) -> pa.Table:
        """The columns of the keys. Keys without fields: one column ``key``."""
        return _columns(self.keys, "key")

    @property
    def next_offset(self) -> int:
        """The offset behind the last record. There must be one."""
        return int(self.offsets[-1].as_py()) + 1

    def slice(self, start: int, count: int | None = None) -> Rows:
        """``count`` records from the one at index ``start`` on; without a copy."""
        parts = (self.values, self.keys, self.offsets, self.timestamps_ms, self.headers)
        values, keys, offsets, timestamps_ms, headers = (part.slice(start, count) for part in parts)
        origin = self.original_topic
        return Rows(self.topic, self.partition, values, keys, offsets, timestamps_ms, headers, origin)


def _shown(rows: Rows) -> list[Mapping[str, Any]]:
    columns = (rows.offsets, rows.keys, rows.values)
    return [
        {"topic": rows.topic, "partition": rows.partition, "offset": offset, "key": key, "value": value}
        for offset, key, value in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def _columns(array: pa.Array[Any], name: str) -> pa.Table:
    if not isinstance(array, pa.StructArray):
        return pa.table({name: array})
    # flatten() gives fields the nulls of their struct
    return pa.Table.from_arrays(array.flatten(), names=[field.name for field in array.type])


@dataclass(frozen=True, slots=True)
class Checked:
    """How the rows of a target and the records of a range of offsets agree."""

    records: int = 0
    """That should be rows: refused ones are none, and of a key only the last one."""
    refused: int = 0
    """That do not fit the table."""
    missing: Sequence[int] = ()
    """Offsets of records without a row."""
    different: Sequence[int] = ()
    """Offsets of records whose row has other values, or that have deleted a row which is there."""
    unexpected: int = 0
    """Rows of this range without a record of their own."""
    repaired: int = 0


class Verifier(Protocol):
    """
    Compares a target with records. All calls come from one thread: ``begin``, ``learn`` for all rows where ``learns``,
    ``check`` for each range of each partition, ``finish``; ``close`` last, whatever has failed.

    Raises, each call:
        RetriableError: the target is away.
        InvalidConfig: it has no such table, or it cannot be told.
    """

    learns: bool
    """Whether records behind a range say something about it: of each key the last one counts."""

    def begin(self, partitions: Sequence[TopicPartition], *, repair: bool) -> Mapping[TopicPartition, int]:
        """
        The positions that the target has; partitions that it does not know are left out. What is compared is the target
        as it is now. With ``repair`` no other holder changes these partitions before ``close``.
        """
        ...

    def learn(self, rows: Rows) -> None:
        """Rows by ascending offset."""
        ...

    def check(self, partition: TopicPartition, rows: Sequence[Rows], first: int, end: int) -> Checked:
        """
        ``rows``: all records of the partition from ``first`` on, below ``end``, that compaction has left. A repair
        deletes what they say is deleted, and no row only because none of them is its record.
        """
        ...

    def finish(self) -> None:
        """What was repaired is durable when it returns."""
        ...

    def close(self) -> None:
        """Let go; what was repaired without ``finish`` is undone."""
        ...


@dataclass(frozen=True, slots=True)
class NoSettings:
    """Of a connector that has none."""


S = TypeVar("S")


class Connector(Generic[S]):
    """What sources and sinks have in common. ``class Weather(Source[Settings])``: ``Settings`` is a dataclass."""

    settings_type: ClassVar[type]
    """The dataclass; taken from the brackets."""
    defaults: ClassVar[Mapping[str, str]] = {}
    """Keys that every connector has, and for which this one has another default: ``{"value.converter": "bytes"}``."""
    version: ClassVar[str] = "1"
    traces: bool = False
    """Whether this process traces; set before ``start``. What an item carries as ``traceparent`` may become a header of
    its records."""
    notify: Notify = staticmethod(lambda event: None)
    """Tell workers something; any thread may call it. Set before ``start``."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for base in cls.__dict__.get("__orig_bases__", ()):  # not those of its parents: they have had theirs
            origin, args = get_origin(base), get_args(base)
            if inspect.isclass(origin) and issubclass(origin, Connector) and not isinstance(args[0], TypeVar):
                cls.settings_type = args[0]
        if not hasattr(cls, "settings_type"):
            cls.settings_type = NoSettings

    def check(self) -> Awaitable[Sequence[str]] | Sequence[str]:
        """
        Ask the other system whether this can work; called by ``validate``, on an instance that is not started.

        Returns:
            What is wrong, and what to do about it: no connection, no rights, no such table.
        """
        return ()

    def start(self) -> Awaitable[None] | None:
        """Connect. Called before everything but ``check``; what it raises has the task restarted, as its fault says."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """Let go of everything. Called once, also after a failed ``start``; nothing is called after it."""
        return None


class Source(Connector[S]):
    """Reads another system."""

    exactly_once: ClassVar[bool] = True
    """Whether ``read`` goes on exactly behind a position: no row again, no row left out."""
    copies: ClassVar[bool] = False
    """Whether records are copies of records elsewhere: then a process that traces adds no header to them."""
    topics: Topics | None = None
    """Of the cluster that is written to. Set before ``start``; None in ``check`` and ``preview``, which change
    nothing."""
    units: Units | None = None
    """Set before ``start`` as ``topics`` is, for a task only."""
    jobs: Jobs | None = None
    """The same."""

    retained_bytes: int | None = None
    """What the other system keeps until it is committed here, as a database does WAL for a slot; an instance says it
    when it knows, and it is shown as a metric. None: nothing, or not known."""

    def splits(self) -> Awaitable[Sequence[Split]] | Sequence[Split]:
        """What can be read apart now. Tasks share the splits."""
        return (Split("all"),)

    def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk] | Iterator[Chunk]:
        """
        Read on, for good; it ends where the split has an end.

        An async generator waits for more as it likes, and says before that it is ``drained``. One that is not async
        shares its thread with other splits: it yields a ``drained`` chunk, without rows if need be, instead of waiting,
        and is asked again after ``poll.interval.ms``.

        Args:
            after: as committed with the last chunk; None: from the beginning.

        Raises:
            RetriableError: not now; it is called again after a while, with the position of the last chunk.
        """
        raise NotImplementedError

    def is_still(self, split: Split) -> bool:
        """
        Whether it is certain that a split which has said that it is ``drained`` has nothing new: then it is not read
        again after ``poll.interval.ms``, but asked this again, which is to cost little. Only where ``read`` is not
        async; in a thread that connectors share, while the split is not read.
        """
        return False

    def preview(self, split: Split) -> AsyncIterator[Chunk] | Iterator[Chunk]:
        """
        What ``headrace connect preview`` shows: the first rows, and then a ``drained`` chunk. As ``read`` from the
        beginning, unless that would leave something behind in the other system.
        """
        return self.read(split, None)

    def read_again(self, tables: Sequence[str]) -> Awaitable[Sequence[str]] | Sequence[str]:
        """
        Have rows that are there be read again, beside the changes that follow: what runs hears of it by the other
        system, now or when it runs again. Called on an instance that is not started.

        Returns:
            Full names of the tables.

        Raises:
            InvalidConfig: a table is none of its, or the source cannot do it.
        """
        del tables
        raise InvalidConfig(f"{type(self).__name__} cannot read a part of its source again; postgres-cdc can")

    def note(self, written: Sequence[Written]) -> Awaitable[Sequence[Note]] | Sequence[Note]:
        """
        What else belongs into a transaction, now that it is known where its records are. Called once before each commit
        of a class that overrides it, with the chunks in their order; if it is not committed, they are read again.
        """
        return ()

    def committed(self, split: Split, position: Position) -> Awaitable[None] | None:
        """
        Everything up to ``position`` is in its topics. The source may forget it: move a slot, delete a file.

        May come again for the same position, and for positions between only the last one counts.
        """
        return None


class Sink(Connector[S]):
    """Writes another system."""

    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """An instance may say another one than its class, also of what follows; but not ``POSITIONS`` where its class does
    not."""
    commit_interval_ms: int = 1_000
    """``commit`` is called after so long at the latest, unless ``offset.flush.interval.ms`` says another time."""
    commit_rows: int = 10_000
    """And after so many records."""
    commit_bytes: int = 64 << 20
    """And after so many bytes of them, as they are in their topic: what is not committed is in memory."""
    commit_drained: bool = True
    """And as soon as there is nothing more to read for now. False: where each commit costs, as a file does; then only
    with ``run --until-idle``."""

    def open(
        self, partitions: Sequence[TopicPartition], epoch: int
    ) -> Awaitable[Mapping[TopicPartition, int]] | Mapping[TopicPartition, int]:
        """
        These partitions are this instance's from now on, until ``close``. Called again for partitions that are open
        already: whatever was written of them since the last ``commit`` is dropped, and the answer is as at first. When
        it returns, it is decided whether a ``commit`` that failed took place: a database locks the row of the position.

        Args:
            epoch: grows with each holder. With ``POSITIONS``, raise that of each partition in the target, if lower.

        Returns:
            With ``POSITIONS``: the next offset of each partition that the target knows; others begin where
            ``auto.offset.reset`` says. Else nothing.

        Raises:
            PartitionTaken: the target has a higher epoch there.
        """
        return {}

    def write(self, rows: Rows) -> Awaitable[None] | None:
        """
        Take rows of an open partition; may keep them until ``commit``.

        Raises:
            RetriableError: the target is away. ``open`` and the same rows follow.
            RowsRefused: some are bad. ``open`` and the good ones follow. Any other error: which ones are bad is found
                by trying halves.
        """
        raise NotImplementedError

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> Awaitable[None] | None:
        """
        What was written is durable when this returns.

        Args:
            positions: the next offset of each partition that was written to, or whose position has moved otherwise.
                With ``POSITIONS``: keep them in one transaction with the rows, and only where the target still has the
                epoch of ``open`` and the position that was there before.
            token: with ``POSITIONS``: of a prepared transaction; insert it in the same transaction. It must not be
                there: who inserts it first decides.

        Raises:
            PartitionTaken: the target has a higher epoch, another position, or the token: nothing was written.
            Exception: any other: whether it was written is asked by ``open``.
        """
        return None

    def settle(self, token: bytes) -> Awaitable[bool] | bool:
        """
        Only with ``POSITIONS``: whether a ``commit`` with this token took place. If not, insert the token as one that
        was given up, so that no commit with it can take place any more. May be called before ``open``.
        """
        raise NotImplementedError

    def rewind(self, positions: Mapping[TopicPartition, int | None]) -> Awaitable[None] | None:
        """
        Only with ``POSITIONS``, where the target can: change the positions that it has, back or ahead, because somebody
        has asked for it (``PATCH`` and ``DELETE`` of a connector's offsets). Rows stay as they are: those that are read
        again are written again. Called between ``start`` and ``stop``, on an instance that opens nothing. The connector
        is stopped, but an instance of before may be there still.

        Durable when it returns, all of it or nothing; at least each partition in one step. What instances of before
        have written and not committed may not be committed any more: where the target keeps epochs, raise each by one.
        A later ``open`` has a higher one.

        Args:
            positions: the next offset of each partition, also of those that the target does not know. None: it knows
                the partition no more, so reading begins where ``auto.offset.reset`` says.

        Raises:
            RetriableError: the target is away; nobody knows whether they were changed.
            InvalidConfig: it cannot do that; says what to do. Nothing was changed.
        """
        del positions
        raise InvalidConfig(
            f"{type(self).__name__} has no rewind: positions are in its target, and it cannot change them there; "
            "change them by hand while the connector is stopped, or write to a new target under a new name"
        )

    def preview(self, rows: Sequence[Rows]) -> Awaitable[Sequence[Mapping[str, Any]]] | Sequence[Mapping[str, Any]]:
        """
        What would become of records, one mapping for each; nothing is committed. Called on an instance that is not
        started. Here: what ``write`` would be given.
        """
        return [shown for some in rows for shown in _shown(some)]

    def verifier(self) -> Verifier:
        """
        What compares the target with records. Called on an instance that is not started.

        Raises:
            InvalidConfig: the target, or the settings, do not tell which row a record became.
        """
        raise InvalidConfig(
            f"{type(self).__name__} cannot be verified: its target does not say which records it has. sql-sink and "
            "lake-sink can"
        )

    def close(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Others hold these from now on: drop what was written of them since the last ``commit``."""
        return None


Class = TypeVar("Class", bound=type)
Function: TypeAlias = Callable[..., Any]


@overload
def source(function: Function, /) -> type[Source[Any]]: ...
@overload
def source(*, settings: type | None = None) -> Callable[[Function], type[Source[Any]]]: ...
def source(
    function: Function | None = None, /, *, settings: type | None = None
) -> type[Source[Any]] | Callable[[Function], type[Source[Any]]]:
    """
    A source from a generator of chunks.

    The function takes what it needs of ``settings``, ``split`` and ``after``, by these names. One without ``after``
    reads everything again when it is restarted, so it is no exactly-once source.
    """

    def build(function: Function) -> type[Source[Any]]:
        wanted = _parameters(function, {"settings", "split", "after"})

        def read(self: Source[Any], split: Split, after: Position | None) -> Any:
            given = {"settings": self.settings, "split": split, "after": after}
            return function(**{name: given[name] for name in wanted})

        body = {"read": read, "exactly_once": "after" in wanted}
        made: type[Source[Any]] = _class_of(function, Source, settings, body)
        return made

    return build if function is None else build(function)


@overload
def sink(function: Function, /) -> type[Sink[Any]]: ...
@overload
def sink(*, settings: type | None = None) -> Callable[[Function], type[Sink[Any]]]: ...
def sink(
    function: Function | None = None, /, *, settings: type | None = None
) -> type[Sink[Any]] | Callable[[Function], type[Sink[Any]]]:
    """
    A sink from a function that writes rows before it returns; at least once.

    The function takes what it needs of ``settings``, ``rows`` (``Rows``) and ``table`` (its columns), by these names.
    """

    def build(function: Function) -> type[Sink[Any]]:
        wanted = _parameters(function, {"settings", "rows", "table"})

        def write(self: Sink[Any], rows: Rows) -> Any:
            given: dict[str, Callable[[], Any]] = {
                "settings": lambda: self.settings,
                "rows": lambda: rows,
                "table": lambda: rows.table,
            }
            return function(**{name: given[name]() for name in wanted})

        async def write_async(self: Sink[Any], rows: Rows) -> None:
            await write(self, rows)

        body = {"write": write_async if inspect.iscoroutinefunction(function) else write}
        made: type[Sink[Any]] = _class_of(function, Sink, settings, body)
        return made

    return build if function is None else build(function)


def _parameters(function: Function, known: set[str]) -> list[str]:
    names = list(inspect.signature(function).parameters)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise TypeError(
            f"{function.__name__} takes {', '.join(unknown)}, which nobody gives it; a connector's function may take "
            f"{', '.join(sorted(known))}"
        )
    return names


def _class_of(function: Function, base: type, settings: type | None, body: dict[str, Any]) -> Any:
    made = {"__doc__": function.__doc__, "__module__": function.__module__, "settings_type": settings or NoSettings}
    return type(function.__name__, (base,), {**made, **body})


__all__ = [
    "BadItem",
    "Checked",
    "Chunk",
    "Connector",
    "Event",
    "Guarantee",
    "NoSettings",
    "Note",
    "PartitionTaken",
    "Place",
    "Position",
    "RetriableError",
    "Rows",
    "RowsRefused",
    "Sink",
    "Source",
    "Split",
    "TopicPartition",
    "TopicState",
    "Topics",
    "Values",
    "Verifier",
    "Written",
    "sink",
    "source",
]
