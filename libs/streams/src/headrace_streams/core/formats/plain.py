"""Values that are no rows: text or bytes, as the one column ``value``."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.formats.port import Decoded, Problem


class Plain:
    """A format whose values are bytes of one Arrow type. A null is written as a null value, which deletes its key."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name = name
        self.schema = pa.schema([("value", kind)])

    def __repr__(self) -> str:
        return self.name

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``."""
        kind = self.schema.field(0).type
        values = as_binary(values)
        try:
            return Decoded(pa.Table.from_arrays([values.cast(kind)], schema=self.schema))
        except pa.ArrowInvalid:
            pass
        texts: list[str] = []
        problems: list[Problem] = []
        for row, value in enumerate(values.to_pylist()):
            assert value is not None
            try:
                texts.append(value.decode())
            except UnicodeDecodeError as wrong:
                problems.append(Problem(row, f"the value is not UTF-8: {wrong.reason} at byte {wrong.start}"))
        return Decoded(pa.table([pa.array(texts, kind)], schema=self.schema), problems)

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        See ``Format``.

        Raises:
            InvalidConfig: the table has not exactly one column, of the format's type.
        """
        if table.num_columns != 1:
            raise InvalidConfig(
                f"{self.name} writes one column, not {table.num_columns} ({', '.join(table.column_names)}); "
                "select one, or write json"
            )
        column = table.column(0)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if kind not in _FITTING[self.name]:
            raise InvalidConfig(
                f"{self.name} does not write column {table.column_names[0]!r}, which is {column.type}; "
                f"cast it to {self.schema.field(0).type}, or write json"
            )
        return as_binary(column).cast(pa.binary())  # type: ignore[no-any-return]


_FITTING: Final = {"string": (pa.string(), pa.large_string()), "bytes": (pa.binary(), pa.large_binary())}
string: Final = Plain("string", pa.string())
bytes: Final = Plain("bytes", pa.binary())
