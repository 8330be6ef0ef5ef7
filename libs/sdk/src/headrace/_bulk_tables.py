"""
What ``send_table`` makes of columns that are not keys and values: checked and brought into one form as columns.

``_bulk`` calls this; nothing here looks at single rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace._core.chunk import RECORD_OVERHEAD
from headrace.errors import Rejected
from headrace_common.core.arrow import need_arrow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class ArrowTable(Protocol):
    """What gives its rows by Arrow's C interface: tables of Arrow, pandas, polars, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def arrow_table(given: Any) -> Any:
    """
    The Arrow table itself, or what another library's gives by Arrow's C interface: pandas (2.2 and newer), polars,
    DuckDB, readers of batches. None of these is imported.

    Raises:
        Rejected: it has no such interface, or fails to give its rows; or pyarrow is not installed.
    """
    need_arrow("send_table")
    import pyarrow as pa

    if isinstance(given, pa.Table | pa.RecordBatch):
        return given
    kind = type(given).__name__
    if not hasattr(given, "__arrow_c_stream__") and not hasattr(given, "__arrow_c_array__"):
        raise Rejected(
            f"send_table takes an Arrow table, or what has Arrow's C interface (pandas from 2.2, polars, DuckDB), not "
            f"{kind}; for lists use send_many"
        )
    try:
        return pa.table(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Rejected(f"send_table: this {kind} gives no Arrow table: {error}") from error


def partitions_of(column: Any) -> np.ndarray[Any, Any]:
    """
    A partition for each row; -1, as null, leaves it to the key.

    Raises:
        Rejected: they are not whole numbers, or larger than any partition is.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise Rejected(f"the column partition takes whole numbers, not {column.type}")
    try:
        numbers: np.ndarray[Any, Any] = pc.fill_null(column.cast(pa.int32()), -1).to_numpy()
    except pa.ArrowInvalid as error:
        raise Rejected(f"the column partition: {error}") from None
    return numbers


def headers_of(column: Any) -> pa.Array[Any]:
    """
    A list of headers for each row, in the form in which batches have them; null is none.

    Raises:
        Rejected: it is not ``list<struct<key: string, value: binary>>``, or a header has no name.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace_common.core.batch.arrow_schema import headers_type, no_headers, pair_fields

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if pa.types.is_null(kind):
        return no_headers(len(column))
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if (
        not lists
        or not pa.types.is_struct(kind.value_type)
        or not {"key", "value"} <= {f.name for f in kind.value_type}
    ):
        raise Rejected(f"the column headers takes list<struct<key: string, value: binary>>, not {kind}")
    pairs = column.flatten()
    names = pc.struct_field(pairs, "key")
    if names.null_count or pairs.null_count:
        raise Rejected("the column headers has a header without a name (key)")
    if not _text(names.type):
        raise Rejected(f"the name of a header is text, not {names.type}")
    try:
        made = pa.StructArray.from_arrays(
            [names.cast(pa.string()), pc.struct_field(pairs, "value").cast(pa.binary())], fields=pair_fields()
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Rejected(f"the column headers: {error}") from None
    from_arrays: Any = pa.ListArray.from_arrays  # its stubs want the type of the offsets to be known
    whole: pa.Array[Any] = from_arrays(_ends(column), made, type=headers_type())
    return whole


def _text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.DictionaryType):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _ends(lists: Any) -> pa.Array[Any]:
    """Where each list ends among the pairs of all, from 0; of a null list, where the one before did."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if int(ends[-1]) >= 2**31:
        raise Rejected(f"{int(ends[-1])} headers are more than one table may have; send fewer rows at a time")
    made: pa.Array[Any] = pa.array(ends.astype(np.int32))
    return made


def header_sizes(headers: Any) -> np.ndarray[Any, Any]:
    """What the headers of each row count for, in bytes."""
    import numpy as np
    import pyarrow.compute as pc

    pairs = headers.flatten()
    sizes = np.full(len(pairs), RECORD_OVERHEAD, np.int64)
    for name in ("key", "value"):
        lengths: Any = pc.fill_null(pc.binary_length(pc.struct_field(pairs, name)), 0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    before = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(sizes, out=before[1:])
    ends = headers.offsets.to_numpy()
    found: np.ndarray[Any, Any] = before[ends[1:] - ends[0]] - before[ends[:-1] - ends[0]]
    return found
