"""What the sink needs of a kind of lake: tables that keep positions beside their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.records import TopicPartition
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
