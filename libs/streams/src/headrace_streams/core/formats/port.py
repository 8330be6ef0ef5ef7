"""What a format is: how the values (or keys) of a topic become columns, and how columns become values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that could not be read."""

    row: int
    """Its place in the array that was given."""
    message: str
    """What is wrong with it: names the column and what was there, cut to 200 characters."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What an array of values became."""

    table: pa.Table
    """One row for each value that could be read, in order; its schema is always the format's."""
    problems: list[Problem] = field(default_factory=list)
    """The values that could not, in order."""
    counts: npt.NDArray[np.int64] | None = None
    """How many rows each value that could be read has given; None: one each."""


class Format(Protocol):
    """
    Reads and writes values. Pure: the same bytes give the same columns, alone or among others.

    A format that only writes (``json`` without a schema) has no ``schema``.
    """

    @property
    def schema(self) -> pa.Schema | None:
        """The columns that ``decode`` gives."""

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """
        Args:
            values: binary or large_binary, without nulls.

        Raises:
            AssertionError: the format has no schema.
        """

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        One binary value for each row.

        Raises:
            NotEncodable: a row cannot be written; names it, so that it can be taken out.
        """


class NotEncodable(Exception):
    """A row cannot be written in the format of its topic."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
