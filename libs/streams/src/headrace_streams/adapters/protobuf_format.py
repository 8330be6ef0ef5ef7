"""
``protobuf``: messages to columns and back, by Google's library, which knows each rule of the encoding.

Columns are taken from all messages of a batch, field by field.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from headrace.errors import InvalidConfig
from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.formats.avro_write import casts
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.formats.framing import Codec, Decode, Encode, SchemaText
from headrace_streams.core.formats.json_text import MS_MAX, MS_MIN
from headrace_streams.core.formats.port import Decoded, NotEncodable, Problem

arrow: Any = pa  # its stubs are narrower than it is
Messages = Sequence[Any]
_MESSAGE_CHARACTERS_MAX: Final = 200
_INDEXES_MAX: Final = 63
"""So many that their number is one byte."""
_INDEX_BYTES_MAX: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_GOOGLES: Final = "google/protobuf/"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SCALARS: Final[dict[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


class ProtobufFormat:
    """Messages of one type; satisfies ``Format``."""

    def __init__(self, message: type[Message]) -> None:
        """
        Raises:
            InvalidConfig: this is no message, or no column can hold one of its fields.
        """
        descriptor = getattr(message, "DESCRIPTOR", None)
        if not isinstance(descriptor, Descriptor):
            raise InvalidConfig(f"protobuf: {message!r:.100} is no class of a message, as protoc makes them")
        self.descriptor = descriptor
        self._message: Any = message
        self.schema: pa.Schema = parse_schema(pa.schema(list(_struct(descriptor, (descriptor.full_name,), ()))))

    def __repr__(self) -> str:
        return f"protobuf({self.descriptor.full_name})"

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``."""
        return self.decode_from(as_binary(values).to_pylist(), {})

    def decode_from(self, values: Iterable[Any], problems: dict[int, str]) -> Decoded:
        """
        See ``Format``.

        Args:
            values: bytes; those that cannot be read are empty, and ``problems`` says why, by place.
        """
        problems = dict(problems)
        messages: list[Any] = []
        places: list[int] = []
        for place, value in enumerate(values):
            if place in problems:
                continue
            try:
                messages.append(self._message.FromString(value))
                places.append(place)
            except DecodeError as wrong:
                problems[place] = f"the value is no {self.descriptor.full_name}: {wrong}"
        try:
            table = self._table(messages)
        except ValueError:
            good = []
            for place, message in zip(places, messages, strict=True):
                try:
                    self._table([message])
                    good.append(message)
                except ValueError as wrong:
                    problems[place] = str(wrong)
            table = self._table(good)
        told = [Problem(place, why[:_MESSAGE_CHARACTERS_MAX]) for place, why in sorted(problems.items())]
        return Decoded(table, told)

    def _table(self, messages: Messages) -> pa.Table:
        columns = [_column(field, messages) for field in self.descriptor.fields]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        See ``Format``. A null is a field that is not set.

        Raises:
            InvalidConfig: the message has no such fields.
        """
        for column in table.schema:
            if column.name not in self.schema.names:
                known = ", ".join(self.schema.names)
                raise InvalidConfig(
                    f"{self!r} has no field {column.name!r} ({known}); select() what is to be written, or rename() it"
                )
            self._check(column.type, self.schema.field(column.name).type, column.name)
        values = []
        for row, given in enumerate(table.to_pylist()):
            message = self._message()
            try:
                _fill(message, given)
                values.append(message.SerializeToString(deterministic=True))
            except (TypeError, ValueError, EncodeError) as wrong:
                raise NotEncodable(row, f"{type(wrong).__name__}: {wrong}"[:_MESSAGE_CHARACTERS_MAX]) from None
        return pa.array(values, pa.binary())

    def _check(self, given: Any, wanted: Any, place: str) -> None:
        types = pa.types
        if types.is_struct(wanted) and types.is_struct(given):
            names = [field.name for field in wanted]
            for field in given:
                if field.name not in names:
                    raise InvalidConfig(f"{self!r} has no field '{place}.{field.name}' ({', '.join(names)})")
                self._check(field.type, wanted.field(field.name).type, f"{place}.{field.name}")
        elif types.is_list(wanted) and types.is_list(given):
            self._check(given.value_type, wanted.value_type, f"{place}[]")
        elif types.is_map(wanted) and types.is_map(given) and given.key_type == pa.string():
            self._check(given.item_type, wanted.item_type, f"{place}[]")
        elif given != pa.null() and (types.is_nested(wanted) or not casts(given, wanted)):
            raise InvalidConfig(f"{self!r}: column {place!r} is {given}, and the field is {wanted}; cast it")


def _struct(descriptor: Descriptor, around: tuple[str, ...], path: tuple[str, ...]) -> Any:
    """The columns of a message, as a struct."""
    return pa.struct([(field.name, _field_type(field, around, (*path, field.name))) for field in descriptor.fields])


def _field_type(field: FieldDescriptor, around: tuple[str, ...], path: tuple[str, ...]) -> Any:
    entry = _entry(field)
    if entry is not None:
        return arrow.map_(pa.string(), _value_type(entry.fields_by_name["value"], around, path))
    return arrow.list_(_value_type(field, around, path)) if field.is_repeated else _value_type(field, around, path)


def _value_type(field: FieldDescriptor, around: tuple[str, ...], path: tuple[str, ...]) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.string()
    kind = field.message_type
    if kind is None:
        return _SCALARS[field.cpp_type]
    if kind.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if kind.full_name in _WRAPPERS:
        return _value_type(kind.fields[0], around, path)
    if kind.full_name in around:
        raise InvalidConfig(f"protobuf: {'.'.join(path)}: message {kind.full_name} holds itself, which no column can")
    return _struct(kind, (*around, kind.full_name), path)


def _entry(field: FieldDescriptor) -> Descriptor | None:
    """Of a map: the message of its entries."""
    kind = field.message_type
    return kind if kind is not None and kind.GetOptions().map_entry else None


def _column(field: FieldDescriptor, messages: Messages) -> Any:
    """
    One field of all messages.

    Raises:
        ValueError: one holds what no column can.
    """
    values = [getattr(message, field.name) for message in messages]
    if not field.is_repeated:
        present = [message.HasField(field.name) for message in messages] if field.has_presence else None
        return _array(field, values, present)
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(items) for items in values], out=ends[1:])
    entry = _entry(field)
    if entry is None:
        return arrow.ListArray.from_arrays(ends, _array(field, [item for items in values for item in items]))
    pairs = [pair for items in values for pair in items.items()]
    names = pa.array([_key_text(name) for name, _ in pairs], pa.string())
    return arrow.MapArray.from_arrays(ends, names, _array(entry.fields_by_name["value"], [item for _, item in pairs]))


def _key_text(key: Any) -> str:
    """As protobuf's JSON writes keys."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def _array(field: FieldDescriptor, values: Messages, present: Sequence[bool] | None = None) -> Any:
    """Values of a field; null where they are not present."""
    absent = None if present is None else ~np.array(present, bool)
    kind = field.message_type
    if kind is None:
        if field.enum_type is not None:
            names = field.enum_type.values_by_number
            values = [names[n].name if n in names else str(n) for n in values]
        return arrow.array(values, _value_type(field, (), ()), mask=absent)
    if kind.full_name == _TIMESTAMP:
        return arrow.array([_microseconds(field, at) for at in values], pa.timestamp("us", "UTC"), mask=absent)
    if kind.full_name in _WRAPPERS:
        return _array(kind.fields[0], [one.value for one in values], present)
    columns = [_column(one, values) for one in kind.fields]
    mask = None if absent is None else arrow.array(absent)
    if not columns:
        return arrow.array([{}] * len(values), pa.struct([]), mask=absent)
    return arrow.StructArray.from_arrays(columns, names=[one.name for one in kind.fields], mask=mask)


def _microseconds(field: FieldDescriptor, at: Any) -> int:
    if not (MS_MIN <= at.seconds * 1_000 <= MS_MAX and 0 <= at.nanos < 1_000_000_000):
        raise ValueError(f"{field.name}: the time is outside the years 1 to 9999")
    return int(at.seconds) * 1_000_000 + int(at.nanos) // 1_000


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    """
    Raises:
        TypeError, ValueError: a value is not of its field.
    """
    for field in message.DESCRIPTOR.fields:
        given = row.get(field.name)
        if given is None:
            continue
        entry = _entry(field)
        if not field.is_repeated:
            _set(message, field, given)
        elif entry is not None:
            _fill_map(getattr(message, field.name), entry, given)
        elif field.message_type is not None:
            for item in given:
                _fill_message(getattr(message, field.name).add(), item, field.name)
        else:
            getattr(message, field.name).extend([_scalar(field, item) for item in given])


def _set(message: Any, field: FieldDescriptor, given: Any) -> None:
    if field.message_type is None:
        setattr(message, field.name, _scalar(field, given))
    else:
        _fill_message(getattr(message, field.name), given, field.name)


def _fill_map(target: Any, entry: Descriptor, given: Any) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for name, item in given:
        at = _key(key, name)
        if value.message_type is None:
            target[at] = _scalar(value, item)
        else:
            _fill_message(target[at], item, value.name)


def _key(field: FieldDescriptor, text: str) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"true": True, "false": False}[text]
    return int(text)


def _scalar(field: FieldDescriptor, given: Any) -> Any:
    if given is None:
        raise ValueError(f"{field.name} holds a null, which the encoding cannot")
    if field.enum_type is None:
        return given
    known = field.enum_type.values_by_name
    return known[given].number if given in known else int(given)


def _fill_message(message: Any, given: Any, name: str) -> None:
    if given is None:
        raise ValueError(f"{name} holds a null, which the encoding cannot")
    message.SetInParent()
    kind = message.DESCRIPTOR.full_name
    if kind == _TIMESTAMP:
        microseconds = (given - _EPOCH) // _MICROSECOND
        message.seconds, message.nanos = microseconds // 1_000_000, microseconds % 1_000_000 * 1_000
    elif kind in _WRAPPERS:
        message.value = given
    else:
        _fill(message, given)


class ProtobufCodec(Codec):
    """
    Messages behind an id and the place of their type in the schema's file. They are read as the program's own message,
    whatever they were written with: that is how protobuf evolves. So reading needs no registry.
    """

    kind = "PROTOBUF"
    reads_by_id = False

    def __init__(self, format_: ProtobufFormat) -> None:
        self._format = format_

    @property
    def schema(self) -> pa.Schema:
        """See ``Codec``."""
        return self._format.schema

    def reader(self, written: SchemaText | None) -> Decode:
        """See ``Codec``."""
        return self._read

    def _read(self, values: pa.BinaryArray, begin: int) -> Decoded:
        problems: dict[int, str] = {}
        cut: list[bytes] = []
        for place, value in enumerate(values.to_pylist()):
            assert value is not None
            try:
                cut.append(value[_message_at(value, begin) :])
            except ValueError as why:
                problems[place] = str(why)
                cut.append(b"")
        return self._format.decode_from(cut, problems)

    def writer(self, columns: pa.Schema, subject: str) -> tuple[SchemaText, Encode]:
        """See ``Codec``; the schema is the file of the message, as its descriptor in base64."""
        file = self._format.descriptor.file
        others = [one.name for one in file.dependencies if not one.name.startswith(_GOOGLES)]
        if others:
            raise InvalidConfig(
                f"protobuf: {file.name} imports {', '.join(others)}, which would have to be registered before; "
                "put the messages in one file"
            )
        self._format.encode(columns.empty_table())
        prefix = pa.scalar(_place_of(self._format.descriptor), pa.binary())
        join: Callable[..., Any] = pa.compute.binary_join_element_wise
        schema = SchemaText(self.kind, b64encode(file.serialized_pb).decode())
        return schema, lambda table: join(prefix, self._format.encode(table), b"")


def _place_of(descriptor: Descriptor) -> bytes:
    """Which of its file's messages it is: how many numbers follow, then one for each level; the first is one zero."""
    indexes: list[int] = []
    here: Descriptor | None = descriptor
    while here is not None:
        outer = here.containing_type
        beside = list(here.file.message_types_by_name.values()) if outer is None else list(outer.nested_types)
        indexes.insert(0, [one.full_name for one in beside].index(here.full_name))
        here = outer
    if indexes == [0]:
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def _message_at(value: bytes, at: int) -> int:
    """
    Where the message begins: what ``_place_of`` makes is before it, from ``at``.

    Raises:
        ValueError: it is not there.
    """
    first = value[at : at + 1]
    if not first or first[0] % 2 or first[0] > 2 * _INDEXES_MAX:
        raise ValueError("the place of the message is not told; was the value written with registry=?")
    at += 1
    for _ in range(first[0] // 2):
        end = next((place for place in range(at, min(at + _INDEX_BYTES_MAX, len(value))) if value[place] < 0x80), -1)
        if end < 0:
            raise ValueError("the place of the message: the value ends in the middle")
        at = end + 1
    return at


def _zigzag(number: int) -> bytes:
    left, written = number * 2, bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*written, left])


def message_in(file: Path, name: str) -> type[Message]:
    """
    A message of a descriptor set, as ``protoc --descriptor_set_out=FILE --include_imports`` writes it.

    Raises:
        InvalidConfig: this is no such file, or has no such message.
    """
    pool = descriptor_pool.DescriptorPool()
    try:
        for one in descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes()).file:
            pool.Add(one)
    except (OSError, DecodeError, TypeError) as failed:
        raise InvalidConfig(
            f"{file} is no descriptor set: {failed}; make it with protoc --descriptor_set_out --include_imports"
        ) from None
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise InvalidConfig(f"{file} has no message {name!r}; write it with its package, like shop.Order") from None
