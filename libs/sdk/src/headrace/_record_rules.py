"""
Decides what may be sent: serializes and checks records, one or many, before intake accepts them.

Runs in the caller, so that what is wrong is raised by the call that sends it. Called by both shells and ``_bulk``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from headrace._core.chunk import BATCH_OVERHEAD, RECORD_OVERHEAD
from headrace._runtime import loaded
from headrace.errors import (
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

TIMESTAMP_MAX: Final = 2**63 - 1

_PLAIN: Final = frozenset({bytes, type(None)})


class Extra(NamedTuple):
    """What ``send_many`` was given beside values and keys."""

    partitions: Any
    """One for all, or an array of one for each; -1: it is left to the key."""
    timestamps_ms: Any
    headers: Any
    """Lists of pairs, or an Arrow array (``_bulk_tables``); None: nobody has any."""

    def cut(self, start: int, end: int) -> Extra:
        """For rows ``start`` to ``end``."""
        partitions, stamps = self.partitions, self.timestamps_ms
        return Extra(
            partitions if partitions is None or isinstance(partitions, int) else partitions[start:end],
            stamps if stamps is None or isinstance(stamps, int) else stamps[start:end],
            None if self.headers is None else self.headers[start:end],
        )


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


class RecordRules:
    """The settings that concern single records. Safe to use from any thread."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._value_bytes = _serializing(settings.value_serializer, "value")
        self._key_bytes = _serializing(settings.key_serializer, "key")
        self._partitioner: Any = settings.partitioner
        self._per_record = self._partitioner is not None and not takes_many(self._partitioner)

    @property
    def plain(self) -> bool:
        """Whether bytes need nothing but an append now."""
        return not (self.serializes or self._per_record or self._tracing)

    @property
    def _tracing(self) -> bool:
        return self._settings.trace and loaded("opentelemetry.trace")

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
        if self._tracing:
            pairs = _add_trace(pairs)
        if partition is None and self._per_record:
            partition = self._place(view, key)
        if partition is not None:
            check_partition(view, partition)
        if timestamp_ms is not None:
            _check_timestamp(timestamp_ms)
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"")
        if pairs:
            size += sum(len(name) + len(data or b"") + RECORD_OVERHEAD for name, data in pairs)
        self.check_size(view, size)
        return Row(value, key, pairs, partition, timestamp_ms, size)

    def _place(self, view: View, key: bytes | None) -> int | None:
        try:
            placed = self._partitioner(view.name, key, view.partitions)
        except HeadraceError:
            raise
        except Exception as error:  # the application's own function
            raise InvalidPartitions(f"the partitioner raised {error!r}") from error
        if placed is None or placed < 0:
            return None
        if placed >= view.partitions:
            raise InvalidPartitions(f"the partitioner gave {placed}; {view.name} has {view.partitions} partitions")
        return int(placed)

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

    @property
    def serializes(self) -> bool:
        """Whether keys or values go through a function of the application."""
        return bool(self._settings.value_serializer or self._settings.key_serializer)

    @property
    def places_each(self) -> bool:
        """Whether the application's partitioner is asked for each record."""
        return self._per_record

    def many_values(self, values: list[Any]) -> list[Any]:
        return _many(values, self._value_bytes, self._settings.value_serializer is not None)

    def many_keys(self, keys: list[Any]) -> list[Any]:
        return _many(keys, self._key_bytes, self._settings.key_serializer is not None)

    def place_many(self, view: View, keys: list[bytes | None]) -> list[int]:
        """Ask the application's partitioner for each key; -1: the sticky partition."""
        placed = [self._place(view, key) for key in keys]
        return [-1 if each is None else each for each in placed]


def check_partition(view: View, partition: int) -> None:
    """Raises: ``Rejected``: that is no number; ``UnknownTopicOrPartition``: the topic has none of that number."""
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise Rejected(f"partition is a number, not {partition!r}")
    if not 0 <= partition < view.partitions:
        raise UnknownTopicOrPartition(
            f"topic {view.name!r} has partitions 0 to {view.partitions - 1}; there is no {partition}"
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


def _add_trace(pairs: list[Header] | None) -> list[Header] | None:
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
