"""What the sink needs of a kind of lake: tables that keep positions beside their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import compute

from headrace.records import TopicPartition
from headrace_connect.connectors.lake_sink.added import OFFSET, PREFIX
from headrace_connect.core.kinds import Kind

Array = Any
"""An Arrow array; its stubs are narrower than it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one partition for one table, in the order of their offsets."""

    table: str
    first: int
    """The offset of its first row."""
    end: int
    """Behind the offset of its last row."""
    rows: pa.Table


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A position that changes, and the rows between."""

    start: int | None
    """The position that ``open`` has said, or the last commit; None: there is none."""
    end: int
    parts: Sequence[Part]
    """One for each table."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a table that records of a range of offsets have made."""

    table: str
    of: str
    """The topic."""
    topic: str | None
    """The same; None: the rows do not say it, and all are of one."""
    partition: int
    first: int
    end: int

    @property
    def filter(self) -> Any:
        """As pyarrow's data sets have it."""
        field: Any = compute.field
        found = field(f"{PREFIX}partition") == self.partition
        found &= (field(OFFSET) >= self.first) & (field(OFFSET) < self.end)
        return found if self.topic is None else found & (field(f"{PREFIX}topic") == self.topic)

    @property
    def where(self) -> str:
        """As SQL has it. Names of topics have no quotes."""
        found = f"{PREFIX}partition = {self.partition} and {OFFSET} >= {self.first} and {OFFSET} < {self.end}"
        return found if self.topic is None else f"{found} and {PREFIX}topic = '{self.topic}'"


class Lake(Protocol):
    """
    Tables under one place, and the positions of one connector.

    Raises, each call:
        RetriableError: the lake is away; of ``commit`` nobody knows then what took place.
        InvalidConfig: only a change of the settings, the table or the installation helps.
    """

    widens: bool
    """Whether a column may get a wider type."""

    def start(self) -> None:
        """Connect."""
        ...

    def check(self) -> Sequence[str]:
        """Connect and try what will be needed, rights to write too; what is wrong."""
        ...

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """
        The positions that are there. Whatever ``commit`` of this instance left undecided is decided when it returns.

        Raises:
            PartitionTaken: see ``Sink.open``.
        """
        ...

    def rewind(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """See ``Sink``. Moves that were begun before fail: they say another position."""
        ...

    def find_position(self, partition: TopicPartition) -> int | None:
        """The position that counts now; asking decides nothing."""
        ...

    def read(self, span: Span) -> pa.Table:
        """Rows, in any order, as of the first call."""
        ...

    def replace(self, span: Span, rows: pa.Table) -> None:
        """
        Put rows, which have the table's columns, in the place of those of a range; durable when it returns. No other
        holder writes this range any more: the position is behind it.

        Raises:
            RetriableError: somebody has changed the position meanwhile, or nobody knows whether it took place.
        """
        ...

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget what is known of them."""
        ...

    def schema(self, table: str) -> pa.Schema | None:
        """Its columns, as they were when they were asked for first since ``reload``; None: there is no such table."""
        ...

    def reload(self) -> None:
        """Columns are asked for anew."""
        ...

    def normal(self, kind: Kind) -> Kind:
        """The type that a column gets for fields of a type."""
        ...

    def find_unstorable(self, kind: Kind) -> str | None:
        """Why no column can be of such a type; None: it can."""
        ...

    def find_unfit(self, values: Array) -> Mapping[int, str]:
        """Of values that have a column's type: those that it has no form of, and why."""
        ...

    def commit(
        self, moves: Mapping[TopicPartition, Move], schemas: Mapping[str, pa.Schema], token: bytes | None
    ) -> None:
        """
        Rows, positions and token; durable when it returns. Each partition in one step, and with a token all of them.

        Args:
            schemas: of the tables, as they are to be: what ``schema`` said, and more.

        Raises:
            PartitionTaken: the lake has another position of a partition, or the token.
        """
        ...

    def settle(self, token: bytes) -> bool:
        """See ``Sink.settle``."""
        ...
