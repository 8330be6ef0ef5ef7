"""Formats that need something from outside: files with schemas, registries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from headrace.errors import InvalidConfig
from headrace_streams.adapters.schema_registry import SchemaRegistry
from headrace_streams.core.formats.avro_format import AvroCodec, AvroFormat
from headrace_streams.core.formats.framing import Framed, Schemas

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
        if subject:
            raise InvalidConfig(f"avro: subject={subject!r} is of a registry; say registry= too")
        return AvroFormat(given)
    return Framed(AvroCodec(given), _opened(registry), subject, auto_register=auto_register)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failed:
        raise InvalidConfig(f"the schema in {file} cannot be read: {failed}") from None


def _opened(registry: Registry) -> Schemas:
    return SchemaRegistry(registry) if isinstance(registry, str) else registry
