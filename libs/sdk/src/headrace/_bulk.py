"""
How ``send_many`` and ``send_table`` become slices that fit into chunks: checked as a whole, and never row by row.

Called by both twins, before anything is accepted; the slices are then added one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from headrace._bulk_tables import arrow_table, header_sizes, headers_of, partitions_of
from headrace._core.chunk import RECORD_OVERHEAD, Chunk
from headrace._descriptors import needing_descriptors
from headrace._intake import Intake
from headrace._record_rules import Extra, View, check_headers
from headrace.errors import Rejected, SerializationFailed, UnknownTopicOrPartition

if TYPE_CHECKING:
    import pyarrow as pa


class Slice:
    """Rows that go into one chunk."""

    __slots__ = ("_arrow", "_extra", "_keys", "_values", "size")

    def __init__(self, values: Any, keys: Any, extra: Extra, size: int, *, arrow: bool) -> None:
        self._values = values
        self._keys = keys
        self._extra = extra
        self._arrow = arrow
        self.size = size

    def add(self, intake: Intake, view: View) -> tuple[Chunk, int, int] | None:
        """Put the rows in; None when there is no room. With the token held."""
        add = intake.add_arrays if self._arrow else intake.add_lists
        return add(view, self._values, self._keys, self._extra, self.size)


@needing_descriptors()
def slices(
    intake: Intake,
    view: View,
    values: Any,
    keys: Any,
    headers: Any,
    partition: Any,
    timestamps_ms: Any,
) -> list[Slice]:
    """
    The records, checked, in slices of at most a quarter of a chunk.

    Raises:
        Rejected, SerializationFailed, RecordTooLarge, UnknownTopicOrPartition: nothing was accepted.
    """
    if _is_arrow(values) and (keys is None or _is_arrow(keys)) and not intake.rules.serializes:
        extra = _extra(intake, view, len(values), headers, partition, timestamps_ms)
        return _arrow_slices(intake, view, values, keys, extra)
    listed = intake.rules.many_values(_as_list(values, "values"))
    listed_keys = None if keys is None else intake.rules.many_keys(_as_list(keys, "keys"))
    count = len(listed)
    if listed_keys is not None and len(listed_keys) != count:
        raise Rejected(f"{len(listed_keys)} keys for {count} values; give one for each, or None")
    if intake.rules.places_each and partition is None:
        partition = intake.rules.place_many(view, listed_keys or [None] * count)
    extra = _extra(intake, view, count, headers, _numbers(partition), _numbers(timestamps_ms))
    return _list_slices(intake, view, listed, listed_keys, extra)


@needing_descriptors()
def table_columns(intake: Intake, view: View, table: Any) -> list[Slice]:
    """
    The same for an Arrow table, or what gives one by Arrow's C interface.

    Raises:
        Rejected: it is no table, has no column ``value``, or one of another meaning.
    """
    table = arrow_table(table)
    names = set(table.schema.names)
    if "value" not in names:
        raise Rejected(f"the table needs a column 'value'; it has {', '.join(sorted(names))}")

    def column(name: str) -> Any:
        return table.column(name) if name in names else None

    headers, partition, stamps = column("headers"), column("partition"), column("timestamp_ms")
    return slices(
        intake,
        view,
        column("value"),
        column("key"),
        None if headers is None else headers_of(headers),
        None if partition is None else partitions_of(partition),
        None if stamps is None else _stamps(stamps),
    )


def _stamps(column: Any) -> Any:
    import pyarrow as pa

    if column.null_count:
        raise Rejected("timestamp_ms has nulls; leave the column out to have records stamped now")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"))
    return column.cast(pa.int64()).to_numpy()


def _as_list(given: Any, what: str) -> list[Any]:
    if type(given) is list:
        return given
    _check_listed(given, what)
    for name in ("to_pylist", "tolist"):
        convert = getattr(given, name, None)
        if convert is not None:
            listed: list[Any] = convert()
            return listed
    return list(given)


def _is_arrow(given: Any) -> bool:
    """Whether it is an array of Arrow; others count their nulls too, and have no type of Arrow's."""
    return hasattr(given, "null_count") and hasattr(given, "type")


def _check_listed(given: Any, what: str) -> None:
    """
    Whether this is one entry for each record, in an order.

    Raises:
        Rejected, SerializationFailed: it is a table, or something whose iteration gives no records.
    """
    kind = type(given).__name__
    if any(hasattr(given, name) for name in _OF_TABLES):
        raise Rejected(
            f"send_many takes {what} as a list or one column, and this {kind} has named columns: send_table(topic, "
            "table) sends its rows, from a column 'value' and, if they are there, 'key', 'partition', 'timestamp_ms' "
            "and 'headers'"
        )
    if isinstance(given, Mapping):
        raise Rejected(
            f"send_many takes {what} as a list, and iterating this {kind} gives its names alone; for one record use "
            "send, for columns by name send_table with a table made of them"
        )
    if isinstance(given, bytes | str | bytearray | memoryview):
        raise SerializationFailed(f"send_many takes a list of {what}, not {kind}; for one record use send")
    if isinstance(given, Set):
        raise Rejected(f"send_many keeps the order of {what}, and a {kind} has none; give a list")
    try:
        iter(given)
    except TypeError:
        raise SerializationFailed(f"send_many takes a list of {what}, not {kind}; for one record use send") from None


_OF_TABLES: Final = ("columns", "column_names", "schema")
"""What tables have and columns do not: of pandas, polars, DuckDB and Spark, of Arrow, of Arrow's readers."""


def _extra(intake: Intake, view: View, count: int, headers: Any, partition: Any, timestamps_ms: Any) -> Extra:
    if headers is not None:
        if not hasattr(headers, "type"):
            headers = [check_headers(each) for each in headers]
        _same_length("headers", headers, count)
    if partition is not None:
        partition = _check_partitions(view, partition, count)
    if timestamps_ms is not None:
        if not isinstance(timestamps_ms, int):
            _same_length("timestamps_ms", timestamps_ms, count)
        low = _least(timestamps_ms)
        if low < 0:
            raise Rejected(f"timestamps_ms are milliseconds since the epoch, 0 or more, not {low}")
    return Extra(partition, timestamps_ms, headers)


def _numbers(given: Any) -> Any:
    """An array as a list; what else may be given stays as it is."""
    return given.tolist() if hasattr(given, "tolist") else given


def _least(timestamps_ms: Any) -> int:
    if isinstance(timestamps_ms, int):
        return timestamps_ms
    if hasattr(timestamps_ms, "dtype"):
        return int(timestamps_ms.min()) if len(timestamps_ms) else 0
    return min(timestamps_ms, default=0)


def _check_partitions(view: View, given: Any, count: int) -> Any:
    """One for all, or a list or an array of one for each, in which -1 leaves it to the key."""
    if isinstance(given, int):
        low = high = given
        least = 0
    else:
        given = given if hasattr(given, "dtype") else list(map(int, given))
        _same_length("partitions", given, count)
        if not count:
            return given
        low, high = (given.min(), given.max()) if hasattr(given, "dtype") else (min(given), max(given))
        least = -1
    for each in (low, high):
        if not least <= each < view.partitions:
            raise UnknownTopicOrPartition(
                f"topic {view.name!r} has partitions 0 to {view.partitions - 1}; there is no {each}"
            )
    return given


def _same_length(what: str, given: Sequence[Any], count: int) -> None:
    if len(given) != count:
        raise Rejected(f"{len(given)} {what} for {count} values; give one for each")


def _list_slices(intake: Intake, view: View, values: list[Any], keys: list[Any] | None, extra: Extra) -> list[Slice]:
    count = len(values)
    sizes = _sizes(values)
    if keys is not None:
        sizes = list(map(int.__add__, sizes, _sizes(keys)))
    if hasattr(extra.headers, "type"):
        pairs_of = extra.headers.to_pylist()  # one by one, as all else of rows that go through a serializer
        extra = extra._replace(headers=[[(pair["key"], pair["value"]) for pair in each] for each in pairs_of])
    if extra.headers is not None:
        sizes = [
            size + sum(len(name) + len(data or b"") + RECORD_OVERHEAD for name, data in pairs or ())
            for size, pairs in zip(sizes, extra.headers, strict=True)
        ]
    if sizes:
        intake.rules.check_size(view, max(sizes) + RECORD_OVERHEAD)
    total = sum(sizes) + RECORD_OVERHEAD * count
    bytes_max = intake.chunk_bytes(view) // 4
    if total <= bytes_max:
        return [Slice(values, keys, extra, total, arrow=False)] if count else []
    made: list[Slice] = []
    rows = max(1, count * bytes_max // total)
    for start in range(0, count, rows):
        end = min(start + rows, count)
        made += _halve(values, keys, extra, sizes, start, end, bytes_max)
    return made


def _halve(
    values: list[Any], keys: list[Any] | None, extra: Extra, sizes: list[int], start: int, end: int, bytes_max: int
) -> list[Slice]:
    """Rows ``start`` to ``end``, halved until no slice is far above ``bytes_max``."""
    size = sum(sizes[start:end]) + RECORD_OVERHEAD * (end - start)
    if size > 2 * bytes_max and end - start > 1:
        middle = (start + end) // 2
        return [
            *_halve(values, keys, extra, sizes, start, middle, bytes_max),
            *_halve(values, keys, extra, sizes, middle, end, bytes_max),
        ]
    cut_keys = None if keys is None else keys[start:end]
    return [Slice(values[start:end], cut_keys, extra.cut(start, end), size, arrow=False)]


def _sizes(column: list[Any]) -> list[int]:
    try:
        return list(map(len, column))
    except TypeError:
        return [0 if each is None else len(each) for each in column]


def _arrow_slices(intake: Intake, view: View, values: Any, keys: Any, extra: Extra) -> list[Slice]:
    import numpy as np

    values = _binary(values, "value")
    keys = None if keys is None else _binary(keys, "key")
    count = len(values)
    if keys is not None and len(keys) != count:
        raise Rejected(f"{len(keys)} keys for {count} values; give one for each, or None")
    if not count:
        return []
    if intake.rules.places_each and extra.partitions is None:
        listed = [None] * count if keys is None else keys.to_pylist()
        extra = extra._replace(partitions=np.array(intake.rules.place_many(view, listed), np.int64))
    lengths = _lengths(values, keys, extra.headers)
    intake.rules.check_size(view, int(lengths.max()))
    before = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=before[1:])
    rows = max(1, count * intake.chunk_bytes(view) // int(before[-1]))
    made: list[Slice] = []
    for start in range(0, count, rows):
        end = min(start + rows, count)
        part, part_keys = values[start:end], None if keys is None else keys[start:end]
        size = int(before[end] - before[start])
        made.append(Slice(part, part_keys, extra.cut(start, end), size, arrow=True))
    return made


def _lengths(values: Any, keys: Any, headers: Any) -> Any:
    """What each record counts for, in bytes."""
    import numpy as np
    import pyarrow.compute as pc

    lengths = np.full(len(values), RECORD_OVERHEAD, np.int64)
    for column in (values, keys):
        if column is not None:
            sizes: Any = pc.fill_null(pc.binary_length(column), 0)
            lengths += sizes.to_numpy(zero_copy_only=False)
    if hasattr(headers, "type"):
        lengths += header_sizes(headers)
    elif headers is not None:
        lengths += np.array(
            [sum(len(name) + len(data or b"") + RECORD_OVERHEAD for name, data in pairs or ()) for pairs in headers]
        )
    return lengths


def _binary(column: Any, what: str) -> pa.Array[Any]:
    from headrace_common.core.batch.byte_columns import as_binary

    try:
        made: pa.Array[Any] = as_binary(column)
    except TypeError as error:
        raise SerializationFailed(f"the {what} column: {error}") from None
    return made
