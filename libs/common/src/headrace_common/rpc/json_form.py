"""
One rule from messages to JSON, for what is printed or served as the wire has it.

Members have the names of the message's fields. 64-bit integers are numbers, bytes hexadecimal digits, addresses
``host:port``, enums their names in small letters (a number where the name is not known). Zeros are written; what is
absent is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headrace_common.core.ids import Endpoint

Json = dict[str, Any]


def json_of(message: Message) -> Json:
    """A message as plain data for ``json.dumps``."""
    return {field.name: _member(message, field) for field in message.DESCRIPTOR.fields}


def _member(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, entry = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return {str(_value(key, k)): _value(entry, v) for k, v in value.items()}
    if field.is_repeated:
        return [_value(field, one) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: Any, value: Any) -> Any:
    return _BY_TYPE.get(field.type, lambda _, plain: plain)(field, value)


def _message(_: Any, value: Any) -> Any:
    if value.DESCRIPTOR.name == "Endpoint":
        return str(Endpoint(value.host, value.port))
    return json_of(value)


def _enum(field: Any, value: int) -> str | int:
    known = field.enum_type.values_by_number.get(value)
    return value if known is None else known.name.lower()


_BY_TYPE: Final[Mapping[int, Callable[[Any, Any], Any]]] = {
    FieldDescriptor.TYPE_MESSAGE: _message,
    FieldDescriptor.TYPE_ENUM: _enum,
    FieldDescriptor.TYPE_BYTES: lambda _, value: value.hex(),
}
