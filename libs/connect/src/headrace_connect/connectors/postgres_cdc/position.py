"""Where the connector has come to, in the stream of changes and in the tables that it reads beside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Final

from headrace_connect.core.changes import Position
from headrace_connect.core.pgoutput import format_lsn, parse_lsn
from headrace_connect.core.snapshot import Key

BYTES_MAX: Final = 4_096
"""What a position may have as JSON."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of which some rows are read."""

    table: int
    """Its oid."""
    key: tuple[str, ...]
    """The columns by which it is read."""
    after: Key | None
    """The key of the last row that is safe."""


@dataclass(frozen=True, slots=True)
class Place:
    """
    What is safe: of the stream, everything up to here; of the tables, the rows up to a key.

    Of a few tables more of the stream is safe: changes are sent table by table.
    """

    system: str
    """The server, as IDENTIFY_SYSTEM names it."""
    lsn: int
    """All transactions that committed below it are safe: it may be confirmed."""
    index: int = -1
    """Of the transaction that committed at ``lsn``, the last change that is safe; -1: none."""
    ahead: Mapping[int, Position] = field(default_factory=dict, hash=False)
    """By the oid of a table, its last change that is safe, where that is beyond ``lsn`` and ``index``."""
    read: frozenset[int] = frozenset()
    """Oids of the tables of which all rows are read."""
    rows: Rows | None = None
    wanted: frozenset[int] = frozenset()
    """Oids of tables that somebody wants to be read again, whatever the settings say, until they are read."""
    asked: int = 0
    """How often it was committed only to find out whether this task may still commit."""

    columns: Mapping[int, str] = field(default_factory=dict, hash=False)
    """By the oid of a table, ``core.drift.Columns.digest`` of its last change."""

    @property
    def end(self) -> Position:
        """The last change that is safe."""
        return Position(self.lsn, self.index)

    def has(self, table: int, at: Position) -> bool:
        """Whether a change is safe."""
        return at <= self.end or (bool(self.ahead) and at <= self.ahead.get(table, self.end))

    def moved(self, lsn: int, index: int = -1) -> Place:
        """Everything up to there is safe."""
        end = Position(lsn, index)
        return replace(self, lsn=lsn, index=index, ahead={oid: at for oid, at in self.ahead.items() if at > end})

    def to_json(self) -> dict[str, Any]:
        """At most ``BYTES_MAX`` of it may be kept; see ``size``."""
        made: dict[str, Any] = {"system": self.system, "lsn": format_lsn(self.lsn)}
        if self.index >= 0:
            made["index"] = self.index
        if self.ahead:
            made["ahead"] = {str(oid): [format_lsn(at.commit_lsn), at.index] for oid, at in sorted(self.ahead.items())}
        if self.read:
            made["read"] = _steps(self.read)
        if self.rows is not None:
            after = None if self.rows.after is None else [part.decode() for part in self.rows.after]
            made["rows"] = {"table": self.rows.table, "key": list(self.rows.key), "after": after}
        if self.wanted:
            made["wanted"] = _steps(self.wanted)
        if self.asked:
            made["asked"] = self.asked
        if self.columns:
            made["columns"] = {str(oid): digest for oid, digest in sorted(self.columns.items())}
        return made

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Place:
        """
        From ``to_json``.

        Raises:
            ValueError: says what is wrong with it.
        """
        try:
            rows = given.get("rows")
            return cls(
                str(given["system"]),
                parse_lsn(given["lsn"]),
                int(given.get("index", -1)),
                {int(oid): Position(parse_lsn(lsn), int(at)) for oid, (lsn, at) in given.get("ahead", {}).items()},
                frozenset(accumulate(map(int, given.get("read", ())))),
                None if rows is None else _rows(rows),
                frozenset(accumulate(map(int, given.get("wanted", ())))),
                int(given.get("asked", 0)),
                {int(oid): str(digest) for oid, digest in given.get("columns", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"it is no position of postgres-cdc: {error!r}") from error


def size(place: Place) -> int:
    """Bytes of a position as JSON."""
    return len(json.dumps(place.to_json()).encode())


def size_when_read(tables: Collection[int]) -> int:
    """Bytes that a position has at least when all these tables are read."""
    return size(Place("0" * 19, 1 << 63, read=frozenset(tables)))


def _steps(oids: Collection[int]) -> list[int]:
    """The first, and how much greater each other one is: shorter than the numbers."""
    ascending = sorted(oids)
    return [ascending[0], *(after - before for before, after in pairwise(ascending))]


def _rows(given: Mapping[str, Any]) -> Rows:
    after: Sequence[str] | None = given["after"]
    key = tuple(str(name) for name in given["key"])
    if after is not None and len(after) != len(key):
        raise ValueError("after has another number of values than key")
    return Rows(int(given["table"]), key, None if after is None else tuple(part.encode() for part in after))
