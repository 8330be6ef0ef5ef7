"""
One batch of a partition: pieces of columns that came together, their encoded bytes, and in the end the outcome.

``lane`` decides when it is sent; this knows its records only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace_common.core.batch import (
    RECORDS_PER_BATCH_MAX,
    Codec,
    RecordColumns,
    build_batch,
    build_fence_batch,
    stamp_producer,
)
from headrace_common.core.batch.stamp_runs import StampRuns

if TYPE_CHECKING:
    from headrace_common.core.errors import HeadraceError

SEQUENCES: Final = 2**31
"""Sequence numbers go from 2147483647 to 0."""


class Watcher(NamedTuple):
    """Somebody who waits for news of a record; they are told in this order."""

    place: float
    """The record's place in its batch, or its row in a chunk."""
    number: int
    """Of all watchers, in the order in which they came."""
    look: Callable[[], object]


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class Outcome(NamedTuple):
    """What became of a batch."""

    base_offset: int
    """-1 when it failed, or nobody told."""
    log_append_ms: int
    """-1: records keep their own timestamps."""
    error: HeadraceError | None

    def offset_of(self, place: int) -> int:
        """Of the record at ``place``; -1 when it failed, or nobody told."""
        return self.base_offset + place if self.base_offset >= 0 else -1


class Piece(NamedTuple):
    """Rows of one chunk for one partition, in the order of the calls."""

    values: Any
    """A list, or an Arrow array."""
    keys: Any
    """The same; None when no row has a key."""
    timestamps: Any
    """One for all, or a sequence of one for each."""
    headers: Any
    """A list of lists, or an Arrow array; None when no row has any."""
    size_bytes: int


class Batch:
    """
    Records of one partition that are written together or not at all.

    ``sent`` says whether it ever left; ``uncertain`` that an attempt had no clear answer, so that it may be written;
    ``absent`` that the leader has told it was not written under its sequence. ``parts`` are the two halves when it was
    too large. ``token`` is the fencing token that it carries, ``fence`` the one that it sets; it then has no records.
    """

    __slots__ = (
        "absent",
        "attempts",
        "count",
        "created_ms",
        "encoded",
        "expired",
        "fence",
        "identity",
        "in_flight",
        "last_error",
        "outcome",
        "partition",
        "parts",
        "pieces",
        "sent",
        "sequence",
        "size_bytes",
        "timestamps",
        "token",
        "told",
        "topic",
        "uncertain",
        "watchers",
    )

    def __init__(self, topic: str, partition: int, created_ms: float) -> None:
        self.topic = topic
        self.partition = partition
        self.created_ms = created_ms
        self.pieces: list[Piece] = []
        self.count = 0
        self.size_bytes = 0
        self.encoded: bytes | None = None
        self.identity: Identity | None = None
        self.sequence = -1
        self.attempts = 0
        self.sent = False
        self.in_flight = False
        self.absent = False
        self.uncertain = False
        self.expired = False
        self.token: int | None = None
        self.fence: int | None = None
        self.last_error: Exception | None = None
        self.outcome: Outcome | None = None
        self.parts: tuple[Batch, Batch] | None = None
        self.timestamps: Any = None
        self.told = -1.0
        """Who waits for the records up to this place was told of the outcome."""
        self.watchers: list[Watcher] | None = None

    @classmethod
    def of_fence(cls, topic: str, partition: int, token: int, *, created_ms: float, timestamp_ms: int) -> Batch:
        """The control batch that sets a fencing token."""
        batch = cls(topic, partition, created_ms)
        batch.fence, batch.count, batch.timestamps = token, 1, timestamp_ms
        batch.encoded = build_fence_batch(token, timestamp_ms=timestamp_ms)
        return batch

    @property
    def written(self) -> bool:
        """Whether it was acknowledged."""
        return self.outcome is not None and self.outcome.error is None

    def add(self, piece: Piece) -> int:
        """Take rows in and return the place of the first."""
        place = self.count
        self.pieces.append(piece)
        self.count += len(piece.values)
        self.size_bytes += piece.size_bytes
        return place

    def fits(self, piece: Piece, size_max: int) -> bool:
        """Whether the rows may join without passing the size or the number of records that one batch holds."""
        return (
            self.size_bytes + piece.size_bytes <= size_max and self.count + len(piece.values) <= RECORDS_PER_BATCH_MAX
        )

    def encode(self, codec: Codec, identity: Identity | None, sequence: int, *, transactional: bool = False) -> bytes:
        """
        The batch as it goes on the wire; kept until the outcome is known.

        Raises:
            InvalidRecord, RecordTooLarge, TypeError: the records cannot be written as one batch.
        """
        self.identity, self.sequence = identity, sequence
        producer_id, epoch = identity or (-1, -1)
        columns = self._columns()
        self.timestamps = columns.timestamps_ms
        self.encoded = build_batch(
            columns,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        return self.encoded

    def restamp(self, identity: Identity, sequence: int) -> None:
        """The same records under another identity; the old sequence was never written."""
        assert self.encoded is not None, "only what was encoded has a sequence"
        self.identity, self.sequence = identity, sequence
        self.absent = self.uncertain = False
        self.encoded = stamp_producer(self.encoded, identity.producer_id, identity.epoch, sequence)

    def _columns(self) -> RecordColumns:
        pieces = self.pieces
        if len(pieces) > 1:
            self.pieces = pieces = [_join(pieces)]
        piece = pieces[0]
        return RecordColumns(piece.values, piece.keys, piece.timestamps, piece.headers)

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches with the records of this one, which has more than one."""
        assert self.count > 1, "a single record cannot be split"
        piece = _join(self.pieces) if len(self.pieces) > 1 else self.pieces[0]
        middle = self.count // 2
        bytes_first = self.size_bytes * middle // self.count
        self.parts = (
            self._part(cut(piece, 0, middle, bytes_first)),
            self._part(cut(piece, middle, self.count, self.size_bytes - bytes_first)),
        )
        self.release()
        return self.parts

    def _part(self, piece: Piece) -> Batch:
        part = Batch(self.topic, self.partition, self.created_ms)
        part.add(piece)
        return part

    def release(self) -> None:
        """Give back the records' memory."""
        self.pieces = []
        self.encoded = None

    def timestamp(self, place: int) -> int:
        """Of the record at ``place``, once the outcome is known."""
        if self.outcome is not None and self.outcome.log_append_ms >= 0:
            return self.outcome.log_append_ms
        stamps = self.timestamps
        return stamps if isinstance(stamps, int) else int(stamps[place])


def cut(piece: Piece, start: int, end: int, size_bytes: int) -> Piece:
    """Rows ``start`` to ``end`` of a piece."""
    stamps = piece.timestamps
    return Piece(
        piece.values[start:end],
        None if piece.keys is None else piece.keys[start:end],
        stamps if isinstance(stamps, int) else stamps[start:end],
        None if piece.headers is None else piece.headers[start:end],
        size_bytes,
    )


def _join(pieces: list[Piece]) -> Piece:
    counts = [len(piece.values) for piece in pieces]
    keys = None
    if any(piece.keys is not None for piece in pieces):
        keys = _column([[None] * n if p.keys is None else p.keys for p, n in zip(pieces, counts, strict=True)])
    return Piece(
        _column([piece.values for piece in pieces]),
        keys,
        _stamps(pieces, counts),
        _headers([piece.headers for piece in pieces], counts),
        sum(piece.size_bytes for piece in pieces),
    )


def _headers(given: list[Any], counts: list[int]) -> Any:
    """One column of those of the pieces; None: none of them has any."""
    there = [headers for headers in given if headers is not None]
    if not there:
        return None
    if all(hasattr(headers, "type") for headers in there):
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import no_headers

        filled = [no_headers(n) if headers is None else headers for headers, n in zip(given, counts, strict=True)]
        return pa.concat_arrays(filled)
    joined: list[Any] = []
    for headers, count in zip(given, counts, strict=True):
        if headers is None:
            joined += [()] * count
        elif hasattr(headers, "type"):
            joined += [[(pair["key"], pair["value"]) for pair in each] for each in headers.to_pylist()]
        else:
            joined += headers
    return joined


def _column(columns: list[Any]) -> Any:
    if all(hasattr(column, "type") for column in columns):
        import pyarrow as pa

        return pa.chunked_array(columns).combine_chunks()
    return list(chain.from_iterable(_list_column(column) if hasattr(column, "type") else column for column in columns))


def _list_column(column: Any) -> list[bytes | None]:
    import pyarrow as pa

    listed: list[bytes | None] = column.cast(pa.binary()).to_pylist()  # it may be text
    return listed


def _stamps(pieces: list[Piece], counts: list[int]) -> Any:
    """One for all, or a sequence of one for each."""
    given = [piece.timestamps for piece in pieces]
    if all(isinstance(stamps, int | StampRuns) for stamps in given):
        if isinstance(given[0], int) and given.count(given[0]) == len(given):
            return given[0]
        runs = ([(n, each)] if isinstance(each, int) else each.runs() for each, n in zip(given, counts, strict=True))
        return StampRuns(chain.from_iterable(runs))
    if all(hasattr(stamps, "dtype") for stamps in given):
        import numpy as np

        return np.concatenate(given)
    return list(chain.from_iterable(_list_stamps(each, n) for each, n in zip(given, counts, strict=True)))


def _list_stamps(stamps: Any, count: int) -> Sequence[int]:
    if isinstance(stamps, int):
        return [stamps] * count
    listed: Sequence[int] = stamps.tolist() if hasattr(stamps, "tolist") else stamps
    return listed
