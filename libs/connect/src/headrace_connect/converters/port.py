"""What a converter is: bytes of a topic's keys or values to columns, and columns to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Values that have one type."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Of each value: the index of the bytes that it was read of."""
    values: Any
    """An array: structs, or any other type; null: there was a null."""
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)
    """Of the field ``key`` or ``value``: ``OPEN``, ``NAME``, ``VERSION`` of ``core.batch``."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What bytes became."""

    parts: list[Part]
    """In the order of the bytes. Several only where one type cannot hold all values."""
    failed: dict[int, str]
    """By the index of the bytes: what is wrong with them."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What columns became."""

    values: Any
    """A binary array, in the order of the rows without those that failed; null: a null value."""
    failed: dict[int, str]
    """By row: what is wrong with it."""


class Converter(Protocol):
    """
    Keys or values of topics. One task's: it may keep what it has learnt, and is used by one thread at a time.

    A row that cannot be converted fails alone.
    """

    def read(self, topic: str, values: Any) -> Read:
        """
        Args:
            values: a binary array; nulls stay nulls.

        Raises:
            RegistryUnavailable, RegistryRefused: of converters with a registry; nothing is wrong with the rows.
        """
        ...

    def write(self, topic: str, values: Any, metadata: Mapping[bytes, bytes]) -> Written:
        """
        Args:
            values: an array of any type; nulls stay nulls.
            metadata: of the field, as ``Part`` has it.

        Raises:
            RegistryUnavailable, RegistryRefused: as for ``read``.
        """
        ...
