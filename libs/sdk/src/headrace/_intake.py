"""
Where records enter a producer: open chunks by topic, the budget of ``buffer_memory``, and the token that guards both.

Both twins append to the chunks here, from any thread; the engine takes closed chunks on its loop. What is shared is
guarded by a token, a list of one element: taking it is ``pop``, giving it back ``append``, which costs a third of a
``threading.Lock`` and, as a critical section lasts a microsecond and never waits, serves as well. The fast path of
``send`` is written out in the two shells, as a call would cost more than what it does; all else is here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from headrace._core.chunk import BATCH_OVERHEAD, RECORD_OVERHEAD, Chunk
from headrace._runtime import Clock, loaded
from headrace.delivery import Delivery
from headrace.errors import (
    ClientClosed,
    HeadraceError,
    InvalidPartitions,
    RecordTooLarge,
    Rejected,
    SerializationFailed,
    UnknownTopicOrPartition,
)
from headrace.records import Header, HeadersIn
from headrace.serializers import Serializer, as_bytes, serializer, takes_many
from headrace.settings import ProducerSettings
from headrace_common.runtime.traceparent import current, to_header

GRANT_BYTES: Final = 256 << 10
"""Budget is given to chunks in such pieces."""

PARTITIONS_TOGETHER_MAX: Final = 64
"""A chunk is closed at batch_size times the partitions, at most so many."""

TIMESTAMP_MAX: Final = 2**63 - 1

_PLAIN: Final = frozenset({bytes, type(None)})
_NAPS_MAX: Final = 4_000
_NAP_SECONDS: Final = 0.0005


class View(Protocol):
    """A topic, as far as intake needs it; ``aio._client.TopicView`` is one."""

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...


class Row(NamedTuple):
    """A record that was found good."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[Header] | None
    partition: int | None
    timestamp_ms: int | None
    size: int


class Token:
    """Holds the token for a ``with`` block."""

    __slots__ = ("_one",)

    def __init__(self, one: list[None]) -> None:
        self._one = one

    def __enter__(self) -> None:
        one = self._one
        naps = 0
        while True:
            try:
                one.pop()
            except IndexError:
                naps += 1
                if naps > _NAPS_MAX:  # the holder was killed by Ctrl+C in between two instructions
                    return
                time.sleep(0 if naps < 10 else _NAP_SECONDS)
                continue
            return

    def __exit__(self, *_: object) -> None:
        self._one.append(None)


class Intake:
    """
    Open chunks and the budget. Methods that say so are called with the token held.

    Args:
        on_open: a chunk was opened; called with the token held, so it only notes that.
        on_close: a chunk was closed; likewise.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        clock: Clock,
        *,
        on_open: Callable[[Chunk], None],
        on_close: Callable[[], None],
    ) -> None:
        self.one: list[None] = [None]
        self.hold = Token(self.one)
        self.fast: dict[str, Chunk] = {}
        """Open chunks of topics that need nothing but an append; emptied to send callers the long way."""
        self.opened: dict[str, Chunk] = {}
        self.closed: deque[Chunk] = deque()
        self.topics: dict[str, View] = {}
        """What the engine knows; replaced by it."""
        self.available = settings.buffer_memory
        self.failure: HeadraceError | None = None
        """Why nothing is taken any more."""
        self._settings = settings
        self._clock = clock
        self._on_open = on_open
        self._on_close = on_close
        self._waiters: list[Callable[[], None]] = []
        self._value_bytes = _serializing(settings.value_serializer, "value")
        self._key_bytes = _serializing(settings.key_serializer, "key")
        self._partitioner = settings.partitioner
        self._per_record = self._partitioner is not None and not takes_many(self._partitioner)
        self._plain = not (settings.value_serializer or settings.key_serializer or self._per_record)

    # --- one record -------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises: ``ClientClosed`` or what ended the producer."""
        if self.failure is not None:
            raise self.failure

    def row(
        self,
        view: View,
        value: Any,
        key: Any,
        headers: HeadersIn | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Row:
        """
        Serialize and check a record, without the token.

        Raises:
            SerializationFailed, RecordTooLarge, UnknownTopicOrPartition, InvalidPartitions, Rejected: what is wrong.
        """
        value, key = self._value_bytes(value), self._key_bytes(key)
        pairs = check_headers(headers)
        if self._settings.trace and loaded("opentelemetry.trace"):
            pairs = _traced(pairs)
        if partition is None and self._per_record:
            partition = self._placed(view, key)
        if partition is not None:
            self._check_partition(view, partition)
        if timestamp_ms is not None:
            _check_timestamp(timestamp_ms)
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"")
        if pairs:
            size += sum(len(name) + len(data or b"") + RECORD_OVERHEAD for name, data in pairs)
        self.check_size(view, size)
        return Row(value, key, pairs, partition, timestamp_ms, size)

    def _placed(self, view: View, key: bytes | None) -> int | None:
        try:
            placed = self._partitioner(view.name, key, view.partitions)
        except HeadraceError:
            raise
        except Exception as error:  # the application's own function
            raise InvalidPartitions(f"the partitioner raised {error!r}") from error
        return None if placed is None or placed < 0 else int(placed)

    def _check_partition(self, view: View, partition: int) -> None:
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise Rejected(f"partition is a number, not {partition!r}")
        if not 0 <= partition < view.partitions:
            raise UnknownTopicOrPartition(
                f"topic {view.name!r} has partitions 0 to {view.partitions - 1}; there is no {partition}"
            )

    def check_size(self, view: View, size: int) -> None:
        """Raises: ``RecordTooLarge`` when a record of ``size`` bytes, overhead included, is too large."""
        limit = self.record_max(view)
        if size > limit:
            if limit < self._settings.max_request_size - BATCH_OVERHEAD:
                bound, name = view.max_message_bytes, "the topic's max.message.bytes"
            else:
                bound, name = self._settings.max_request_size, "max_request_size"
            raise RecordTooLarge(f"the record has {size} bytes; {name} is {bound}, {BATCH_OVERHEAD} go to its batch")

    def record_max(self, view: View) -> int:
        """The largest record for this topic, as ``Row.size`` counts."""
        return min(self._settings.max_request_size, view.max_message_bytes) - BATCH_OVERHEAD

    def add(self, view: View, row: Row) -> Delivery | None:
        """Append ``row``; None when the budget has no room. With the token held."""
        self.check_open()
        chunk = self._room_for(view, row.size)
        if chunk is None:
            return None
        chunk.room -= row.size
        chunk.mark(self._clock.now_ms())
        delivery = Delivery()
        delivery._chunk = chunk
        delivery._row = at = len(chunk.values)
        if row.partition is not None:
            chunk.name_partition(at, at + 1, row.partition)
        if row.timestamp_ms is not None:
            chunk.stamps.append((at, at + 1, row.timestamp_ms))
        if row.headers:
            chunk.headers[at] = row.headers
        chunk.values.append(row.value)
        chunk.keys.append(row.key)
        return delivery

    # --- many records -----------------------------------------------------------------------------------------

    @property
    def serializes(self) -> bool:
        """Whether keys or values go through a function of the application."""
        return bool(self._settings.value_serializer or self._settings.key_serializer)

    @property
    def places_each(self) -> bool:
        """Whether the application's partitioner is asked for each record."""
        return self._per_record

    def many_values(self, values: list[Any]) -> list[Any]:
        """Serialize values."""
        return _many(values, self._value_bytes, self._settings.value_serializer is not None)

    def many_keys(self, keys: list[Any]) -> list[Any]:
        """Serialize keys."""
        return _many(keys, self._key_bytes, self._settings.key_serializer is not None)

    def place_many(self, view: View, keys: list[bytes | None]) -> list[int]:
        """Ask the application's partitioner for each key; -1: the sticky partition."""
        placed = [self._placed(view, key) for key in keys]
        return [-1 if each is None else each for each in placed]

    def add_lists(
        self, view: View, values: list[Any], keys: list[Any] | None, extra: Extra, size: int
    ) -> tuple[Chunk, int, int] | None:
        """Append rows of ``size`` bytes in all; None when the budget has no room. With the token held."""
        self.check_open()
        chunk = self._room_for(view, size)
        if chunk is None:
            return None
        chunk.room -= size
        chunk.mark(self._clock.now_ms())
        start = len(chunk.values)
        end = start + len(values)
        self._note(chunk, start, end, extra)
        chunk.values.extend(values)
        chunk.keys.extend([None] * len(values) if keys is None else keys)
        return chunk, start, end

    def add_arrays(self, view: View, values: Any, keys: Any, extra: Extra, size: int) -> tuple[Chunk, int, int] | None:
        """The same with Arrow arrays, as a closed chunk of their own, in order after what is open."""
        self.check_open()
        if self.available < size:
            return None
        open_one = self.opened.get(view.name)
        if open_one is not None:
            self.close(open_one)
        self.available -= size
        chunk = self._new(view)
        chunk.granted = size
        chunk.mark(self._clock.now_ms())
        rows = len(values)
        self._note(chunk, 0, rows, extra)
        chunk.values, chunk.keys = values, keys
        self.closed.append(chunk)
        self._on_close()
        return chunk, 0, rows

    def _note(self, chunk: Chunk, start: int, end: int, extra: Extra) -> None:
        if extra.partitions is not None:
            if isinstance(extra.partitions, int):
                chunk.name_partition(start, end, extra.partitions)
            else:
                for at, partition in enumerate(extra.partitions, start):
                    if partition is not None and partition >= 0:
                        chunk.name_partition(at, at + 1, partition)
        if extra.timestamps_ms is not None:
            chunk.stamps.append((start, end, extra.timestamps_ms))
        if extra.headers is not None:
            chunk.headers.update((at, each) for at, each in enumerate(extra.headers, start) if each)

    # --- chunks and budget ------------------------------------------------------------------------------------

    def _new(self, view: View) -> Chunk:
        return Chunk(view.name, opened_ms=self._clock.monotonic_ms(), record_max=self.record_max(view))

    def chunk_bytes(self, view: View) -> int:
        """A chunk of this topic is closed here."""
        together = self._settings.batch_size * min(view.partitions, PARTITIONS_TOGETHER_MAX)
        return min(together, self._settings.buffer_memory // 4)

    def _room_for(self, view: View, size: int) -> Chunk | None:
        """The open chunk of the topic with room for ``size`` more bytes; None when the budget has none."""
        chunk = self.opened.get(view.name)
        if chunk is not None and chunk.room < size:
            limit = self.chunk_bytes(view) - chunk.granted
            grant = min(max(GRANT_BYTES, size - chunk.room), limit, self.available)
            if chunk.room + grant >= size:
                self.available -= grant
                chunk.granted += grant
                chunk.room += grant
            else:
                self.close(chunk)
                chunk = None
        if chunk is not None:
            return chunk
        grant = min(max(GRANT_BYTES, size), max(self.chunk_bytes(view), size), self.available)
        if grant < size:
            return None
        chunk = self.opened[view.name] = self._new(view)
        self.available -= grant
        chunk.granted = chunk.room = grant
        if self._plain and not (self._settings.trace and loaded("opentelemetry.trace")):
            self.fast[view.name] = chunk
        self._on_open(chunk)
        return chunk

    def close(self, chunk: Chunk) -> None:
        """Nothing more comes into ``chunk``. With the token held."""
        del self.opened[chunk.topic]
        self.fast.pop(chunk.topic, None)
        self.available += chunk.room
        chunk.granted -= chunk.room
        chunk.room = 0
        self.closed.append(chunk)
        self._on_close()

    def close_all(self) -> None:
        """Close all open chunks. With the token held."""
        for chunk in list(self.opened.values()):
            self.close(chunk)

    def fail(self, error: HeadraceError) -> None:
        """Take nothing any more; what is open is closed. With the token held."""
        self.failure = self.failure or error
        self.close_all()
        self._wake()

    def wait_for_room(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when budget came back. With the token held."""
        self._waiters.append(wake)

    def give_back(self, size: int) -> None:
        """Budget of settled batches. With the token held."""
        self.available += size
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()


class Extra(NamedTuple):
    """What ``send_many`` was given beside values and keys."""

    partitions: int | Sequence[int] | None
    timestamps_ms: Any
    headers: Sequence[Sequence[Header] | None] | None

    def cut(self, start: int, end: int) -> Extra:
        """For rows ``start`` to ``end``."""
        partitions, stamps = self.partitions, self.timestamps_ms
        return Extra(
            partitions if partitions is None or isinstance(partitions, int) else partitions[start:end],
            stamps if stamps is None or isinstance(stamps, int) else stamps[start:end],
            None if self.headers is None else self.headers[start:end],
        )


def check_headers(headers: HeadersIn | None) -> list[Header] | None:
    """
    Headers as pairs.

    Raises:
        Rejected: a name is not text, or a value not bytes, text or None.
    """
    if headers is None:
        return None
    items: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    pairs: list[Header] = []
    for item in items:
        try:
            name, data = item
        except (TypeError, ValueError):
            raise Rejected(f"headers are (name, bytes) pairs or a mapping, not {item!r}") from None
        if not isinstance(name, str):
            raise Rejected(f"the name of a header is text, not {name!r}")
        if isinstance(data, str):
            data = data.encode()
        elif data is not None and not isinstance(data, bytes):
            raise Rejected(f"header {name!r} takes bytes, text or None, not {type(data).__name__}")
        pairs.append((name, data))
    return pairs


def _check_timestamp(timestamp_ms: Any) -> None:
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not 0 <= timestamp_ms <= TIMESTAMP_MAX:
        raise Rejected(f"timestamp_ms is milliseconds since the epoch, 0 or more, not {timestamp_ms!r}")


def _traced(pairs: list[Header] | None) -> list[Header] | None:
    parent = current()
    if parent is None or any(name == "traceparent" for name, _ in pairs or ()):
        return pairs
    return [*(pairs or ()), to_header(parent)]


def _serializing(given: str | Serializer | None, what: str) -> Callable[[Any], bytes | None]:
    if given is None:
        return lambda value: as_bytes(value, what)
    function = serializer(given)

    def serialize(value: Any) -> bytes | None:
        try:
            return as_bytes(function(value), what)
        except SerializationFailed as error:
            raise SerializationFailed(f"the {what}_serializer must return bytes: {error}") from error
        except Exception as error:  # the application's own function
            raise SerializationFailed(f"the {what}_serializer raised {error!r}") from error

    return serialize


def _many(column: list[Any], to_bytes: Callable[[Any], bytes | None], serializes: bool) -> list[Any]:
    if not serializes and _PLAIN.issuperset(map(type, column)):
        return column
    return [to_bytes(each) for each in column]


def closed_error(kind: str) -> ClientClosed:
    """Why a closed client refuses."""
    return ClientClosed(f"the {kind} is closed; make a new one")
