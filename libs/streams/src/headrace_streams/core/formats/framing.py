"""
Values behind the id of their schema in a registry: one zero byte, the id in 4 bytes, the data (Confluent's framing).

A registry is asked for what is not known yet, through the port ``Schemas``; ids never change what they mean, so each is
asked for once. Any of Confluent's interface will do: Karapace, Apicurio, Redpanda.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from headrace.errors import InvalidConfig
from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.errors import RegistryRefused
from headrace_streams.core.formats.port import Decoded, Format, Problem

arrow: Any = pa  # their stubs are narrower than they are
pc: Any = compute
Decode = Callable[[pa.BinaryArray, int], Decoded]
"""Reads values, of which the first so many bytes are no part."""
Encode = Callable[[pa.Table], "pa.Array[Any]"]
HEADER_BYTES: Final = 5
_MESSAGE_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema, as a registry has it."""

    kind: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``."""
    text: str
    references: tuple[Reference, ...] = ()

    def all_references(self) -> list[str]:
        """The texts of what it uses, each behind those that it needs itself."""
        found: dict[str, None] = {}
        for one in self.references:
            found |= dict.fromkeys([*one.schema.all_references(), one.schema.text])
        return list(found)


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses."""

    name: str
    """By which the other calls it."""
    subject: str
    version: int
    schema: SchemaText


class Unfit(Exception):
    """A schema of the registry cannot be read as what the program wants; says why."""


@runtime_checkable
class Schemas(Protocol):
    """
    A registry of schemas. Calls block for a bounded time, and are made again after a failure.

    Each raises ``RegistryUnavailable`` if nobody answers, and ``RegistryRefused`` if asking again does not help.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages: without a password."""
        ...

    def by_id(self, schema_id: int) -> SchemaText | None:
        """None: it has no such schema."""
        ...

    def latest(self, subject: str) -> SchemaText | None:
        """The newest version; None: it has no such subject."""
        ...

    def register(self, subject: str, schema: SchemaText) -> int:
        """Its id, with which it is registered now, if it was not."""
        ...

    def find(self, subject: str, schema: SchemaText) -> int | None:
        """Its id; None: it is not registered under the subject."""
        ...


class Codec(ABC):
    """What is behind the id."""

    kind: ClassVar[str]
    reads_by_id: ClassVar[bool]
    """Whether the schema that a value was written with is needed to read it, or to know the columns."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The columns that are wanted; None: what the registry has is wanted, or it only writes."""

    def adopt(self, text: SchemaText) -> None:
        """
        Want the columns of this schema; of codecs that read by ids.

        Raises:
            Unfit: no columns can hold them.
        """
        raise NotImplementedError

    @abstractmethod
    def reader(self, written: SchemaText | None) -> Decode:
        """
        What reads values that were written with this schema (None where ``reads_by_id`` is false).

        Raises:
            Unfit: they do not give the columns that are wanted.
        """

    @abstractmethod
    def writer(self, columns: pa.Schema, subject: str) -> tuple[SchemaText, Encode]:
        """
        What writes such columns, and with which schema for the subject.

        Raises:
            InvalidConfig: it cannot.
        """


class Framed:
    """A format whose values are behind ids of a registry; satisfies ``Format``."""

    def __init__(self, codec: Codec, schemas: Schemas, subject: str, *, auto_register: bool) -> None:
        """
        Args:
            subject: under which schemas are looked for and registered; empty: of the topic (``of_topic``).
            auto_register: register what is written; else it has to be there.
        """
        self._codec = codec
        self._schemas = schemas
        self._subject = subject
        self._auto_register = auto_register
        self._readers: dict[int, Decode | str] = {}
        self._writers: dict[pa.Schema, tuple[SchemaText, Encode]] = {}
        self._ids: dict[SchemaText, int] = {}

    def __repr__(self) -> str:
        return f"{self._codec.kind.lower()} of {self._schemas.url}"

    def under(self, subject: str) -> Framed:
        """The same for this subject, unless the program has named one."""
        if self._subject:
            return self
        return Framed(copy(self._codec), self._schemas, subject, auto_register=self._auto_register)

    def use(self, schemas: Schemas) -> None:
        """Ask another registry from now on; a test has its own."""
        self._schemas = schemas
        self._readers.clear()
        self._ids.clear()

    @property
    def schema(self) -> pa.Schema | None:
        """
        The columns; of the subject's newest version if the program does not say them, which is asked for once.

        Raises:
            InvalidConfig: there is no such subject, or its schema has no columns.
            RegistryUnavailable, RegistryRefused: see ``Schemas``.
        """
        if self._codec.schema is None and self._codec.reads_by_id and self._subject:
            self._adopt()
        return self._codec.schema

    def _adopt(self) -> None:
        found = self._schemas.latest(self._subject)
        told = f"subject {self._subject!r} of {self._schemas.url}"
        if found is None:
            raise InvalidConfig(f"{told} is not there; register a schema, or say schema= here")
        if found.kind != self._codec.kind:
            raise InvalidConfig(f"{told} is {found.kind}, not {self._codec.kind}")
        try:
            self._codec.adopt(found)
        except Unfit as why:
            raise InvalidConfig(f"{told}: {why}") from None

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``."""
        schema = self.schema
        assert schema is not None, "it only writes"
        binary: Any = as_binary(values).cast(pa.binary())
        ids = _ids_of(binary)
        parts: list[Decoded] = []
        rows: list[Any] = []
        problems: list[Problem] = []
        for schema_id in np.unique(ids).tolist():
            places = np.flatnonzero(ids == schema_id)
            reader = self._reader(schema_id)
            if isinstance(reader, str):
                problems += [Problem(place, reader) for place in places.tolist()]
                continue
            taken = binary if len(places) == len(values) else binary.take(arrow.array(places))
            part = reader(taken, HEADER_BYTES)
            good = np.ones(len(places), np.bool_)
            good[[problem.row for problem in part.problems]] = False
            problems += [Problem(int(places[one.row]), one.message) for one in part.problems]
            parts.append(part)
            rows.append(places[good])
        problems.sort(key=lambda problem: problem.row)
        if not parts:
            return Decoded(schema.empty_table(), problems)
        if len(parts) == 1:
            return Decoded(parts[0].table, problems)
        order = np.argsort(np.concatenate(rows))
        return Decoded(pa.concat_tables([part.table for part in parts]).take(arrow.array(order)), problems)

    def _reader(self, schema_id: int) -> Decode | str:
        """What reads values behind an id, or what is wrong with them."""
        if schema_id < 0:
            return "the value does not begin with a zero byte and the id of a schema; was it written without registry=?"
        if not self._codec.reads_by_id:
            schema_id = 0
        if schema_id not in self._readers:
            written = self._schemas.by_id(schema_id) if self._codec.reads_by_id else None
            told = f"schema {schema_id} of {self._schemas.url}"
            if written is None and self._codec.reads_by_id:
                return f"{told} is not there"
            if written is not None and written.kind != self._codec.kind:
                return f"{told} is {written.kind}, not {self._codec.kind}"
            try:
                self._readers[schema_id] = self._codec.reader(written)
            except Unfit as why:
                self._readers[schema_id] = f"{told}: {why}"[:_MESSAGE_CHARACTERS_MAX]
        return self._readers[schema_id]

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        See ``Format``. The schema is registered, or looked for, with the first row.

        Raises:
            InvalidConfig: such columns cannot be written.
            RegistryUnavailable, RegistryRefused: see ``Schemas``; or the schema has to be there, and is not.
        """
        if table.schema not in self._writers:
            assert self._subject, "it is of a topic"
            self._writers[table.schema] = self._codec.writer(table.schema, self._subject)
        schema, encode = self._writers[table.schema]
        values = encode(table)
        if not table.num_rows:
            return values
        header = b"\0" + self._id_of(schema).to_bytes(4, "big")
        framed: pa.Array[Any] = pc.binary_join_element_wise(pa.scalar(header, pa.binary()), values, b"")
        return framed

    def _id_of(self, schema: SchemaText) -> int:
        if schema not in self._ids:
            if self._auto_register:
                self._ids[schema] = self._schemas.register(self._subject, schema)
            else:
                found = self._schemas.find(self._subject, schema)
                if found is None:
                    raise RegistryRefused(
                        f"subject {self._subject!r} of {self._schemas.url} has not the schema that is to be written; "
                        "register it, or say auto_register=True"
                    )
                self._ids[schema] = found
        return self._ids[schema]


def of_topic(format_: Format, topic: str, part: str) -> Format:
    """
    The format for a topic's values or keys (``part``): its subject is the topic's, as in Kafka, unless it was told.
    """
    return format_.under(f"{topic}-{part}") if isinstance(format_, Framed) else format_


def _ids_of(values: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The id before each value; -1: there is none."""
    headers = pc.binary_slice(values, 0, HEADER_BYTES)
    framed = pc.and_(pc.starts_with(headers, b"\0"), pc.equal(pc.binary_length(headers), HEADER_BYTES))
    ids = np.full(len(values), -1, np.int64)
    found = np.frombuffer(b"".join(headers.filter(framed).to_pylist()), [("zero", "u1"), ("id", ">u4")])
    ids[framed.to_numpy(zero_copy_only=False)] = found["id"]
    return ids
