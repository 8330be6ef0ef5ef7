"""
Converters: bytes of topics to columns and back, under Kafka Connect's names and settings.

``key.converter=json`` with ``key.converter.schemas.enable=false``, or the names of Kafka's Java classes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace_connect.converters.json import JsonConverter
from headrace_connect.converters.port import Converter as Converter
from headrace_connect.converters.port import Part as Part
from headrace_connect.converters.port import Read as Read
from headrace_connect.converters.port import Written as Written
from headrace_connect.converters.simple import BytesConverter, StringConverter
from headrace_connect.core.options import BadOption, InvalidOptions, Option, Problem, near, read

if TYPE_CHECKING:
    from headrace_streams.core.formats.framing import Schemas

_PLAIN: Final[dict[str, Any]] = {"json": JsonConverter, "string": StringConverter, "bytes": BytesConverter}
_OF_FORMATS: Final = {
    "avro": "AvroConverter",
    "protobuf": "ProtobufConverter",
    "json-schema": "JsonSchemaConverter",
    "arrow": "ArrowConverter",
}
"""Classes of ``converters.formats``, which is loaded when one is named: each host would pay for it."""
ALIASES: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "bytes",
    "io.confluent.connect.avro.AvroConverter": "avro",
    "io.confluent.connect.protobuf.ProtobufConverter": "protobuf",
    "io.confluent.connect.json.JsonSchemaConverter": "json-schema",
    "JsonConverter": "json",
    "StringConverter": "string",
    "ByteArrayConverter": "bytes",
    "AvroConverter": "avro",
    "ProtobufConverter": "protobuf",
    "JsonSchemaConverter": "json-schema",
}
"""What else converters are called."""
NAMES: Final = (*_PLAIN, *_OF_FORMATS)


def make_converter(
    config: Mapping[str, str],
    part: Literal["key", "value", "header"],
    *,
    default: str = "json",
    schemas: Schemas | None = None,
) -> Converter:
    """
    The converter that ``key.converter``, ``value.converter`` or ``header.converter`` of a configuration names, with its
    settings.

    Args:
        config: a connector's; other keys than ``PART.converter`` and those below it are not looked at.
        default: where the key is not there.
        schemas: asked in the place of the registry that is named.

    Raises:
        InvalidOptions: has everything that is wrong.
    """
    key = f"{part}.converter"
    problems: list[Problem] = []
    name = config.get(key, default)
    found = ALIASES.get(name, name)
    if found not in NAMES:
        problems.append(Problem(key, f"{key}: there is no converter {name[:80]!r}{near(name, [*NAMES, *ALIASES])}"))
        raise InvalidOptions(problems)
    made = _find(found)
    settings = read(made.options, config, f"{key}.", f"converter {found}", problems)
    if settings is None:
        raise InvalidOptions(problems)
    try:
        converter: Converter = made(settings) if found in _PLAIN else made(settings, part, schemas)
    except BadOption as why:
        whole = f"{key}.{why.name}"
        raise InvalidOptions([Problem(whole, f"{whole}: {why}")]) from None
    return converter


def options_of(name: str) -> tuple[Option, ...]:
    """
    The settings of a converter, by its name or an alias.

    Raises:
        KeyError: there is none.
    """
    options: tuple[Option, ...] = _find(ALIASES.get(name, name)).options
    return options


def _find(name: str) -> Any:
    """
    Raises:
        KeyError: there is none.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    return getattr(importlib.import_module(f"{__name__}.formats"), _OF_FORMATS[name])
