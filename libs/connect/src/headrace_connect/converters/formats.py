"""
``avro``, ``protobuf``, ``json-schema`` and ``arrow``: formats of ``headrace_streams`` as converters.

With a registry, values are behind the id of their schema (Confluent's framing), under the subject of their topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit, urlunsplit

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import compute

from headrace_common.core.batch.byte_columns import as_binary
from headrace_common.core.errors import InvalidConfig
from headrace_connect.converters.json_plain import Inference
from headrace_connect.converters.port import Part, Read, Written
from headrace_connect.core.halving import Unfit, apart
from headrace_connect.core.kinds import nulls_of, struct_of
from headrace_connect.core.options import NULL_DEFAULT, REQUIRED, BadOption, Option, OptionType
from headrace_streams.adapters.schema_registry import SchemaRegistry
from headrace_streams.core.formats import arrow as arrow_format
from headrace_streams.core.formats.avro_format import AvroFormat, parsed
from headrace_streams.core.formats.avro_schema import avro_of, is_value, parse
from headrace_streams.core.formats.framing import HEADER_BYTES, Schemas, of_topic
from headrace_streams.core.formats.port import Format, NotEncodable
from headrace_streams.formats import avro, json, protobuf

pc: Any = compute  # its stubs are narrower than it is
_TOPICS_MAX: Final = 1_000
_IDS_MAX: Final = 10_000
_REGISTRY: Final = (
    Option("schema.registry.url", "Where the registry is; of several, with commas between, the first."),
    Option("registry", "The same, in one word."),
    Option("basic.auth.user.info", "user:password of the registry.", OptionType.PASSWORD),
    Option("bearer.auth.token", "Token of the registry.", OptionType.PASSWORD),
    Option("basic.auth.credentials.source", "Accepted: it is what was given.", default=""),
    Option("auto.register.schemas", "Register what is written, if it is not there.", OptionType.BOOLEAN, True),
    Option("subject", "Of the schemas; empty: the topic's name with -key or -value.", default=""),
    NULL_DEFAULT,
)


class _OfFormat:
    """What the converters have in common: a format for each topic, made when its first value comes."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._formats: dict[tuple[str, Any], Format] = {}

    def _format(self, kind: Any) -> Format:
        """
        The format for values of a type that is no struct; for structs, and for what is read, ``kind`` is None.

        Raises:
            InvalidConfig: there is none.
        """
        raise NotImplementedError

    def _of(self, topic: str, kind: Any = None) -> Format:
        found = self._formats.get((topic, kind))
        if found is None:
            found = of_topic(self._format(kind), topic, self._part)
            if len(self._formats) >= _TOPICS_MAX:
                del self._formats[next(iter(self._formats))]
            self._formats[topic, kind] = found
        return found

    def _is_bare(self, topic: str) -> bool:
        """Whether what is read is no record: then it is the one column ``value``."""
        return False

    def read(self, topic: str, values: Any) -> Read:
        """See ``Converter``."""
        values = as_binary(values)
        nulls = nulls_of(values)
        given = np.flatnonzero(~nulls)
        format_ = self._of(topic)
        decoded = format_.decode(values.drop_null())
        failed = {int(given[one.row]): one.message for one in decoded.problems}
        bad = np.zeros(len(values), bool)
        bad[list(failed)] = True
        table = decoded.table.combine_chunks()
        if self._is_bare(topic):
            array = _whole(table.column(0))
        else:
            columns = [_whole(column) for column in table.columns]
            array = struct_of(list(table.schema), columns, np.zeros(table.num_rows, bool))
        good = np.flatnonzero(~bad & ~nulls)
        rows = good if decoded.counts is None else np.repeat(good, decoded.counts)
        empty = np.flatnonzero(nulls)
        all_rows = np.concatenate([rows, empty])
        order = np.argsort(all_rows, kind="stable")
        whole = pa.concat_arrays([array, pa.nulls(len(empty), array.type)]).take(pa.array(order))
        return Read([Part(all_rows[order], whole)], failed)

    def write(self, topic: str, values: Any, metadata: Mapping[bytes, bytes]) -> Written:
        """See ``Converter``."""
        is_struct = pa.types.is_struct(values.type)
        if values.null_count == len(values):
            return Written(pa.nulls(len(values), pa.binary()), {})
        results, failed = apart(values, lambda part: self._encode(topic, part, is_struct))
        arrays = [array for _, array in results]
        return Written(pa.concat_arrays(arrays) if arrays else pa.array([], pa.binary()), failed)

    def _encode(self, topic: str, values: Any, is_struct: bool) -> Any:
        valid = values.is_valid()
        present = values.drop_null()
        if not len(present):
            return pa.nulls(len(values), pa.binary())
        if is_struct:
            table = pa.Table.from_arrays(present.flatten(), schema=pa.schema(list(values.type)))
        else:
            table = pa.table({"value": present})
        places = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
        try:
            written = as_binary(self._of(topic, None if is_struct else values.type).encode(table)).cast(pa.binary())
        except NotEncodable as why:
            bad = np.zeros(len(values), bool)
            bad[places[why.row]] = True
            raise Unfit(str(why), bad) from None
        except InvalidConfig as why:  # such columns cannot be written: of no row
            raise Unfit(str(why), valid.to_numpy(zero_copy_only=False)) from None
        if not values.null_count:
            return written
        at = np.zeros(len(values), np.int64)
        at[places] = np.arange(len(present))
        return written.take(pa.array(at, mask=~valid.to_numpy(zero_copy_only=False)))


def _whole(column: Any) -> Any:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


class AvroConverter(_OfFormat):
    """Confluent's AvroConverter, or plain Avro with ``schema`` and no registry."""

    options: ClassVar[tuple[Option, ...]] = (
        *_REGISTRY,
        Option("schema", "A file with the schema, or the schema as JSON; with a registry it may be left out."),
    )

    def __init__(self, settings: Mapping[str, Any], part: str, schemas: Schemas | None = None) -> None:
        """
        Raises:
            BadOption: a value does not do.
        """
        super().__init__(part)
        self._settings = settings
        self._registry = _registry(settings, schemas)
        self._given = _text_or_file(settings["schema"])
        self._seen: dict[str, set[bytes | None]] = {}
        self._bare_topics: dict[str, bool] = {}
        if self._registry is None and self._given is None:
            raise BadOption("schema.registry.url", "is missing; avro needs it, or schema")
        try:
            self._bare = self._given is not None and is_value(parsed(self._given))
            self._format(None)
        except InvalidConfig as why:
            raise BadOption("schema", str(why)) from None

    def _format(self, kind: Any) -> Format:
        if self._registry is None:
            assert self._given is not None
            return AvroFormat(self._given)
        given: Any = self._given
        if given is None and kind is not None:  # no record: the type itself is the schema
            field = pa.field("value", kind, nullable=False)
            made = avro_of(pa.schema([field]), "value")["fields"][0]["type"]
            given = orjson.dumps(made).decode()
        return avro(
            given,
            registry=self._registry,
            subject=self._settings["subject"],
            auto_register=self._settings["auto.register.schemas"],
        )

    def read(self, topic: str, values: Any) -> Read:
        """See ``Converter``. Without ``schema``: an id not seen before has the subject's newest version asked for."""
        if self._given is None:
            heads = pc.unique(pc.binary_slice(as_binary(values).cast(pa.binary()), 0, HEADER_BYTES)).to_pylist()
            seen = self._seen.setdefault(topic, set())
            if not seen.issuperset(heads):
                if len(seen) > _IDS_MAX:
                    seen.clear()
                seen.update(heads)
                self._formats.pop((topic, None), None)
                self._bare_topics.pop(topic, None)
        return super().read(topic, values)

    def _is_bare(self, topic: str) -> bool:
        if self._given is not None or self._registry is None:
            return self._bare
        if topic not in self._bare_topics:
            newest = self._registry.latest(self._settings["subject"] or f"{topic}-{self._part}")
            self._bare_topics[topic] = newest is not None and is_value(parse(newest.text, newest.all_references()))
        return self._bare_topics[topic]


class ProtobufConverter(_OfFormat):
    """Confluent's ProtobufConverter, or plain messages without a registry."""

    options: ClassVar[tuple[Option, ...]] = (
        *_REGISTRY,
        Option("descriptor", "A file that protoc --descriptor_set_out --include_imports has made.", default=REQUIRED),
        Option("message", "The message in it, with its package: shop.Order.", default=REQUIRED),
    )

    def __init__(self, settings: Mapping[str, Any], part: str, schemas: Schemas | None = None) -> None:
        """
        Raises:
            BadOption: a value does not do.
        """
        super().__init__(part)
        self._settings = settings
        self._registry = _registry(settings, schemas)
        try:
            self._format(None)
        except InvalidConfig as why:
            raise BadOption("message", str(why)) from None

    def _format(self, kind: Any) -> Format:
        file, name = Path(self._settings["descriptor"]), self._settings["message"]
        if self._registry is None:
            return protobuf(file, name)
        return protobuf(
            file,
            name,
            registry=self._registry,
            subject=self._settings["subject"],
            auto_register=self._settings["auto.register.schemas"],
        )


class JsonSchemaConverter(_OfFormat):
    """Confluent's JsonSchemaConverter. Without ``schema``, types are found in the values, as ``json`` does it."""

    options: ClassVar[tuple[Option, ...]] = (
        *_REGISTRY,
        Option("schema", "The columns that are read, as in Spark's DDL: id bigint, name string."),
    )

    def __init__(self, settings: Mapping[str, Any], part: str, schemas: Schemas | None = None) -> None:
        """
        Raises:
            BadOption: a value does not do.
        """
        super().__init__(part)
        self._settings = settings
        self._registry = _registry(settings, schemas)
        self._inferences: dict[str, Inference] = {}
        if self._registry is None:
            raise BadOption("schema.registry.url", "is missing; json-schema needs it, or take json without a registry")
        try:
            self._format(None)
        except InvalidConfig as why:
            raise BadOption("schema", str(why)) from None

    def _format(self, kind: Any) -> Format:
        assert self._registry is not None
        return json(
            self._settings["schema"],
            registry=self._registry,
            subject=self._settings["subject"],
            auto_register=self._settings["auto.register.schemas"],
        )

    def read(self, topic: str, values: Any) -> Read:
        """See ``Converter``."""
        if self._settings["schema"] is not None:
            return super().read(topic, values)
        values = as_binary(values).cast(pa.binary())
        if topic not in self._inferences and len(self._inferences) >= _TOPICS_MAX:
            del self._inferences[next(iter(self._inferences))]
        inference = self._inferences.setdefault(topic, Inference())
        heads = pc.binary_slice(values, 0, HEADER_BYTES)
        framed = pc.and_(pc.starts_with(heads, b"\0"), pc.equal(pc.binary_length(heads), HEADER_BYTES))
        good = np.flatnonzero(pc.or_kleene(framed, values.is_null()).fill_null(True).to_numpy(zero_copy_only=False))
        found = inference.read(pc.binary_slice(values.take(pa.array(good)), HEADER_BYTES, None))
        bad = np.setdiff1d(np.arange(len(values)), good)
        failed = {int(good[row]): why for row, why in found.failed.items()}
        failed |= dict.fromkeys(bad.tolist(), "the value does not begin with a zero byte and the id of a schema")
        return Read([Part(good[part.rows], part.values, part.metadata) for part in found.parts], failed)


class ArrowConverter(_OfFormat):
    """A value is an Arrow stream of one row or of many; for topics that only Headrace reads."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("schema", "The columns, as in Spark's DDL: id bigint, name string.", default=REQUIRED),
    )

    def __init__(self, settings: Mapping[str, Any], part: str, schemas: Schemas | None = None) -> None:
        """
        Raises:
            BadOption: no such schema.
        """
        super().__init__(part)
        self._settings = settings
        try:
            self._format(None)
        except InvalidConfig as why:
            raise BadOption("schema", str(why)) from None

    def _format(self, kind: Any) -> Format:
        return arrow_format(self._settings["schema"])


def _registry(settings: Mapping[str, Any], schemas: Schemas | None) -> Schemas | None:
    if schemas is not None:
        return schemas
    key = "schema.registry.url" if settings["schema.registry.url"] is not None else "registry"
    url = settings[key]
    if url is None:
        return None
    url = url.split(",")[0].strip()
    if settings["basic.auth.user.info"]:
        user, _, password = settings["basic.auth.user.info"].partition(":")
        parts = urlsplit(url)
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc.rpartition('@')[2]}"
        url = urlunsplit(parts._replace(netloc=login))
    try:
        return SchemaRegistry(url, token=settings["bearer.auth.token"])
    except InvalidConfig:
        raise BadOption(key, "is not the URL of a registry; write it like http://registry:8081") from None


def _text_or_file(given: str | None) -> str | None:
    if given is None or given.lstrip()[:1] in ("{", "[", '"'):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as failed:
        raise BadOption("schema", f"the file {given[:200]} cannot be read: {failed}") from None
