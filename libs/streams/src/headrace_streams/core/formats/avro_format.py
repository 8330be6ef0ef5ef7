"""``avro``: values of Avro's binary encoding, as they are or behind an id of a registry (``framing``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.formats.avro_read import AvroReader
from headrace_streams.core.formats.avro_schema import BadSchema, Record, avro_of, columns_of, parse
from headrace_streams.core.formats.avro_write import AvroWriter
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.formats.framing import Codec, Decode, Encode, SchemaText, Unfit
from headrace_streams.core.formats.port import Decoded

_KIND: Final = "AVRO"
Given = str | Mapping[str, Any] | Sequence[Any]
"""A schema as JSON text, or as what ``json.loads`` makes of it."""


def parsed(given: Given) -> Record:
    """
    A schema of the program's.

    Raises:
        InvalidConfig: it is none, or a column cannot hold what it says.
    """
    try:
        kind = parse(given)
        parse_schema(columns_of(kind))
    except BadSchema as why:
        raise InvalidConfig(f"avro: {why}") from None
    return kind


class AvroFormat:
    """``avro(schema)``: the values are nothing but the encoded data."""

    def __init__(self, given: Given) -> None:
        """
        Raises:
            InvalidConfig: ``given`` is no schema, or a column cannot hold what it says.
        """
        self._kind = parsed(given)
        self._reader = AvroReader(self._kind, self._kind)
        self.schema: pa.Schema = self._reader.schema

    def __repr__(self) -> str:
        return f"avro({', '.join(self.schema.names)})"

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``."""
        return self._reader.decode(as_binary(values).cast(pa.binary()))

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        See ``Format``.

        Raises:
            InvalidConfig: these columns are not those of the schema.
        """
        values: pa.Array[Any] = AvroWriter(table.schema, self._kind).encode(table)
        return values


class AvroCodec(Codec):
    """Avro behind an id: each value is read by the schema that it was written with."""

    kind = _KIND
    reads_by_id = True

    def __init__(self, given: Given | None) -> None:
        """``given``: the schema that is read and written; None: the subject's newest, and one made of the columns."""
        self._given = None if given is None else parsed(given)
        self._text = None if given is None else given if isinstance(given, str) else orjson.dumps(given).decode()

    @property
    def schema(self) -> pa.Schema | None:
        """See ``Codec``."""
        return None if self._given is None else columns_of(self._given)

    def adopt(self, text: SchemaText) -> None:
        """See ``Codec``."""
        try:
            kind = parse(text.text, text.all_references())
            parse_schema(columns_of(kind))
        except (BadSchema, InvalidConfig) as why:
            raise Unfit(str(why)) from None
        self._given = kind

    def reader(self, written: SchemaText | None) -> Decode:
        """See ``Codec``."""
        assert self._given is not None
        assert written is not None
        try:
            return AvroReader(parse(written.text, written.all_references()), self._given).decode
        except BadSchema as why:
            raise Unfit(str(why)) from None

    def writer(self, columns: pa.Schema, subject: str) -> tuple[SchemaText, Encode]:
        """See ``Codec``."""
        if self._text is not None:
            assert self._given is not None
            return SchemaText(_KIND, self._text), AvroWriter(columns, self._given).encode
        made = avro_of(columns, _name_of(subject))
        return SchemaText(_KIND, orjson.dumps(made).decode()), AvroWriter(columns, parse(made)).encode


def _name_of(subject: str) -> str:
    """A record's name, for what is written under a subject."""
    name = re.sub(r"\W", "_", subject, flags=re.ASCII)
    return f"_{name}" if name[:1].isdigit() else name
