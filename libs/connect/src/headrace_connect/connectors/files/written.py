"""Files as they are written: tables to bytes and back. The same table always gives the same bytes."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import csv, ipc, parquet

from headrace_connect.core.json_text import dump, plain

_LINE: Final = "line"


class Form(Protocol):
    """One kind of file."""

    def prepare(self, values: pa.Table) -> pa.Table:
        """
        Columns of records as the file has them.

        Raises:
            ValueError: a value cannot be written as it is.
        """
        ...

    def write(self, table: pa.Table) -> bytes:
        """A whole file of prepared rows."""
        ...

    def read(self, data: bytes) -> pa.Table:
        """What ``write`` was given."""
        ...


class JsonForm:
    """Satisfies ``Form``. Decimals, dates and times are texts, bytes are base64."""

    def prepare(self, values: pa.Table) -> pa.Table:
        """See ``Form``."""
        lines = [dump(row) for row in values.to_pylist(maps_as_pydicts="strict")]
        return pa.table({_LINE: pa.array(lines, pa.string())})

    def write(self, table: pa.Table) -> bytes:
        """See ``Form``."""
        return "".join(f"{line}\n" for line in table.column(_LINE).to_pylist()).encode()

    def read(self, data: bytes) -> pa.Table:
        """See ``Form``."""
        return pa.table({_LINE: pa.array(data.decode().split("\n")[:-1], pa.string())})


class CsvForm:
    """Satisfies ``Form``. Texts are quoted, so that an empty one is not a null; nested values are JSON."""

    def prepare(self, values: pa.Table) -> pa.Table:
        """See ``Form``."""
        return pa.table({name: _as_text(values.column(name)) for name in values.column_names})

    def write(self, table: pa.Table) -> bytes:
        """See ``Form``."""
        data = BytesIO()
        csv.write_csv(table, data, csv.WriteOptions(quoting_style="all_valid"))
        return data.getvalue()

    def read(self, data: bytes) -> pa.Table:
        """See ``Form``."""
        parsing = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        reading = csv.ReadOptions(use_threads=False, block_size=len(data) + 1)
        names = csv.read_csv(BytesIO(data), read_options=reading, parse_options=parsing).column_names
        texts = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return csv.read_csv(BytesIO(data), read_options=reading, parse_options=parsing, convert_options=texts)


class ParquetForm:
    """Satisfies ``Form``."""

    def prepare(self, values: pa.Table) -> pa.Table:
        """See ``Form``."""
        return values

    def write(self, table: pa.Table) -> bytes:
        """See ``Form``."""
        data = pa.BufferOutputStream()
        parquet.write_table(table, data, compression="zstd")
        return data.getvalue().to_pybytes()

    def read(self, data: bytes) -> pa.Table:
        """See ``Form``."""
        return parquet.read_table(pa.BufferReader(data))


class ArrowForm(ParquetForm):
    """Satisfies ``Form``: Arrow's file format."""

    def write(self, table: pa.Table) -> bytes:
        """See ``Form``."""
        data = pa.BufferOutputStream()
        with ipc.new_file(data, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as file:
            file.write_table(table)
        return data.getvalue().to_pybytes()

    def read(self, data: bytes) -> pa.Table:
        """See ``Form``."""
        return ipc.open_file(pa.BufferReader(data)).read_all()


class Compressed:
    """Satisfies ``Form``: the bytes of another one, compressed."""

    def __init__(self, form: Form, codec: str) -> None:
        self._form = form
        self._codec: Any = codec  # the stubs know its names, and want them literally
        self.prepare = form.prepare

    def write(self, table: pa.Table) -> bytes:
        """See ``Form``."""
        data = self._form.write(table)
        if self._codec == "gzip":
            return gzip.compress(data, mtime=0)
        return pa.Codec(self._codec).compress(data, asbytes=True)

    def read(self, data: bytes) -> pa.Table:
        """See ``Form``."""
        return self._form.read(pa.CompressedInputStream(pa.BufferReader(data), self._codec).read())


FORMS: Final[Mapping[str, Form]] = {
    "jsonl": JsonForm(),
    "csv": CsvForm(),
    "parquet": ParquetForm(),
    "arrow": ArrowForm(),
}


def _as_text(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values: list[Any] = column.to_pylist()
        return pa.array([None if one is None else _text(one) for one in values], pa.string())
    return pa.array(column.cast(pa.string()).to_pylist(), pa.string())


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, bytes) else dump(value)
