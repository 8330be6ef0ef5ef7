"""
What the metadata store holds and how it is changed: keys, transactions and changes, as plain values.

Keys are relative to the cluster's prefix, such as ``topics/flights``. Used by the port, its adapters and the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OPERATIONS_MAX: Final = 128
"""Operations, or comparisons, in one transaction; etcd's default for --max-txn-ops."""

TRANSACTION_BYTES_MAX: Final = 1_500_000
"""Keys and values of one transaction; a little below etcd's default for --max-request-bytes (1.5 MiB)."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as it stands."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One key that was written (``current``) or deleted (None) at ``revision``."""

    key: str
    current: KeyValue | None
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything under the prefix at one revision."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one or more whole revisions, in order; never a part of a revision."""

    revision: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Compare: the key was last written at ``mod_revision``; 0: it does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """Compare: the key was created at ``create_revision``; 0: it does not exist."""

    key: str
    create_revision: int


Compare = Unchanged | CreatedAt


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; with a lease it goes when the lease does."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one key; none there is no error."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteUnder:
    """Remove every key that starts with ``prefix``, which is not empty."""

    prefix: str


Operation = Put | Delete | DeleteUnder


@dataclass(frozen=True, slots=True)
class Transaction:
    """If every comparison holds, all operations happen at one revision; else none does."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        total = sum(len(c.key.encode()) for c in self.compares)
        for operation in self.operations:
            match operation:
                case Put(key, value):
                    total += len(key.encode()) + len(value)
                case Delete(key):
                    total += len(key.encode())
                case DeleteUnder(prefix):
                    total += len(prefix.encode())
        return total


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction happened at ``revision``."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A comparison did not hold and nothing was changed; ``found`` has the compared keys that exist."""

    revision: int
    found: Mapping[str, KeyValue]


Outcome = Committed | Conflicted
