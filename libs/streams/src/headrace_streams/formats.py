"""Formats that need something from outside: files with schemas, registries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, overload

import pyarrow as pa
from google.protobuf.message import Message

from headrace.errors import InvalidConfig
from headrace_streams.adapters.protobuf_format import ProtobufCodec, ProtobufFormat, message_in
from headrace_streams.adapters.schema_registry import SchemaRegistry
from headrace_streams.core.formats.avro_format import AvroCodec, AvroFormat
from headrace_streams.core.formats.framing import Framed, Schemas
from headrace_streams.core.formats.json_codec import JsonCodec
from headrace_streams.core.formats.json_format import JsonFormat

Registry = str | Schemas
"""Its URL, or what answers in its place."""
AvroSchema = str | Mapping[str, Any] | Sequence[Any] | Path
"""JSON text, what it stands for, or a file with it."""


@overload
def avro(schema: AvroSchema) -> AvroFormat: ...


@overload
def avro(
    schema: AvroSchema | None = None, *, registry: Registry, subject: str = "", auto_register: bool = True
) -> Framed: ...


def avro(
    schema: AvroSchema | None = None,
    *,
    registry: Registry | None = None,
    subject: str = "",
    auto_register: bool = True,
) -> AvroFormat | Framed:
    """
    Avro: the fields of a record are the columns; of any other type there is the one column ``value``.

    With a registry, each value begins with the id of the schema that it was written with (Confluent's framing), and is
    read by that one as ``schema`` wants it: fields in another order, more or fewer, with defaults and aliases.

    Args:
        schema: what is read and written. With a registry it may be left out: then the columns are those of the
            subject's newest version, asked for when the program is built, and a record of all columns is written.
        registry: the URL, with ``user:password@`` if it asks for that; or a ``SchemaRegistry``.
        subject: of the schemas; the topic's name with ``-value`` (``-key`` for keys) if not told.
        auto_register: register what is written, if it is not there; else it has to be.

    Raises:
        InvalidConfig: no such schema, a type that no column can hold, no such subject.
        RegistryUnavailable, RegistryRefused: of the registry, where it is asked at once.
    """
    given = _text_of(schema) if isinstance(schema, Path) else schema
    if registry is None:
        if given is None:
            raise InvalidConfig("avro needs a schema: JSON text, a dict, or the Path of a file; or registry=")
        _check_no_subject("avro", subject)
        return AvroFormat(given)
    return Framed(AvroCodec(given), _opened(registry), subject, auto_register=auto_register)


@overload
def protobuf(message: type[Message] | Path, name: str = "") -> ProtobufFormat: ...


@overload
def protobuf(
    message: type[Message] | Path, name: str = "", *, registry: Registry, subject: str = "", auto_register: bool = True
) -> Framed: ...


def protobuf(
    message: type[Message] | Path,
    name: str = "",
    *,
    registry: Registry | None = None,
    subject: str = "",
    auto_register: bool = True,
) -> ProtobufFormat | Framed:
    """
    Protobuf: the fields of a message are the columns; what is not set is null, or 0 where the message cannot tell.

    With a registry, each value begins with the id of a schema and the place of the message in it (Confluent's framing).

    Args:
        message: the class that protoc has made; or a descriptor set, and the message's ``name``, like ``"shop.Order"``.
        registry, subject, auto_register: as for ``avro``. Reading needs no answer of the registry.

    Raises:
        InvalidConfig: no such message, or a field that no column can hold.
    """
    if isinstance(message, Path) != bool(name):
        raise InvalidConfig("protobuf takes the class of a message, or the Path of a descriptor set and a name")
    format_ = ProtobufFormat(message_in(message, name) if isinstance(message, Path) else message)
    if registry is None:
        _check_no_subject("protobuf", subject)
        return format_
    return Framed(ProtobufCodec(format_), _opened(registry), subject, auto_register=auto_register)


class Json(JsonFormat):
    """``json``, which knows registries too."""

    @overload
    def __call__(self, schema: str | pa.Schema | type) -> JsonFormat: ...

    @overload
    def __call__(
        self,
        schema: str | pa.Schema | type | None = None,
        *,
        registry: Registry,
        subject: str = "",
        auto_register: bool = True,
    ) -> Framed: ...

    def __call__(
        self,
        schema: str | pa.Schema | type | None = None,
        *,
        registry: Registry | None = None,
        subject: str = "",
        auto_register: bool = True,
    ) -> JsonFormat | Framed:
        """
        The format of values with these columns.

        Args:
            schema: without it, the format only writes.
            registry, subject, auto_register: as for ``avro``; what is written has a JSON schema.

        Raises:
            InvalidConfig: no such schema, or a type that JSON cannot hold.
        """
        if registry is not None:
            return Framed(JsonCodec(schema), _opened(registry), subject, auto_register=auto_register)
        _check_no_subject("json", subject)
        if schema is None:
            raise InvalidConfig("json() needs a schema, like json('user string'); to write any columns, json as it is")
        return super().__call__(schema)


json: Final = Json()


def _check_no_subject(what: str, subject: str) -> None:
    if subject:
        raise InvalidConfig(f"{what}: subject={subject!r} is of a registry; say registry= too")


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failed:
        raise InvalidConfig(f"the schema in {file} cannot be read: {failed}") from None


def _opened(registry: Registry) -> Schemas:
    if isinstance(registry, str):
        return SchemaRegistry(registry)
    if not isinstance(registry, Schemas):
        raise InvalidConfig(f"registry={registry!r:.60} is no registry; write its URL, like http://registry:8081")
    return registry
